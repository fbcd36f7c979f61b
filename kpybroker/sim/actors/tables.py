"""A topic that is compacted, and those who write and read it."""

from __future__ import annotations

from functools import partial
from random import Random

from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.clients.client import GROUP, TRANSACTION, Client
from kpybroker.sim.clients.table_clients import Bookkeeper, Keeper, TableReader
from kpybroker.sim.clients.topic_admin import create_topic, cut_small
from kpybroker.sim.cluster.setup import Setup
from kpybroker.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC


class Tables(Actor):
    """The logs of the coordinators have small segments too, and are cleaned."""

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return setup.table is not None

    def preparations(self, founder: Client) -> list[Preparation]:
        table = self.run.setup.table
        assert table is not None, "it plays"
        return [
            (table.name, partial(create_topic, founder, table)),
            (OFFSETS_TOPIC, partial(cut_small, founder, OFFSETS_TOPIC, GROUP)),
            (TRANSACTION_TOPIC, partial(cut_small, founder, TRANSACTION_TOPIC, TRANSACTION)),
        ]

    def start(self) -> None:
        run, setup, places = self.run, self.run.setup, self.run.tables
        assert setup.forgetting is not None, "it plays"
        random = Random(f"keepers {setup.seed}")
        for number in range(setup.keepers):
            client, is_idempotent = run.client(f"w{number}"), random.random() < 0.7
            place = random.choice(places)
            run.start(
                client,
                Keeper(client, place, idempotent=is_idempotent, pace_s=run.pace_s, tires_after=run.tires_after),
            )
        for number in range(setup.bookkeepers):
            client = run.client(f"b{number}")
            run.start(client, Bookkeeper(client, places, pace_s=run.pace_s))
        client = run.client("table reader")
        run.start(client, TableReader(client, places, setup.forgetting, pace_s=4.0))
