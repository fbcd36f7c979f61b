"""Somebody who moves replicas between the log directories of brokers."""

from __future__ import annotations

from functools import partial

from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.clients.client import Client
from kpybroker.sim.clients.log_dir_moves import Shifter, limit_moves
from kpybroker.sim.cluster.setup import Setup


class LogDirMoves(Actor):
    """Where replicas are in the end is looked at in every run (`check_directories`)."""

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return len(setup.log_dirs) > 1

    def preparations(self, founder: Client) -> list[Preparation]:
        limit = self.run.setup.moves_bytes_s
        return [] if limit is None else [("the limit of moves", partial(limit_moves, founder, limit))]

    def start(self) -> None:
        run = self.run
        client = run.client("shifter")
        run.start(client, Shifter(client, [*run.places, *run.tables], run.setup.log_dirs, pace_s=2.0))
