"""An actor whose client moves replicas between the log directories of brokers."""

from __future__ import annotations

from functools import partial

from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.clients.client import SimClient
from kpybroker.sim.clients.log_dir_moves import LogDirMover, limit_moves
from kpybroker.sim.cluster.setup import Setup


class LogDirMoves(Actor):
    """Runs the client. `check_directories` checks the locations of replicas at the end of every run."""

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return len(setup.log_dirs) > 1

    def preparations(self, founder: SimClient) -> list[Preparation]:
        limit = self.run.setup.moves_bytes_s
        return [] if limit is None else [("the throttle of moves", partial(limit_moves, founder, limit))]

    def start(self) -> None:
        run = self.run
        client = run.client("shifter")
        run.start(client, LogDirMover(client, [*run.places, *run.tables], run.setup.log_dirs, pace_s=2.0))
