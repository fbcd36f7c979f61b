"""An actor with a compacted topic, its writers and its reader."""

from __future__ import annotations

from functools import partial
from random import Random

from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.clients.client import GROUP, TRANSACTION, SimClient
from kpybroker.sim.clients.table_clients import TableReader, TableWriter, TransactionalTableWriter
from kpybroker.sim.clients.topic_admin import create_topic, use_small_segments
from kpybroker.sim.cluster.setup import Setup
from kpybroker.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC


class Tables(Actor):
    """Creates the topic, runs its clients, and gives the coordinators' logs small segments, so that these are also
    cleaned."""

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return setup.table is not None

    def preparations(self, founder: SimClient) -> list[Preparation]:
        table = self.run.setup.table
        assert table is not None, "it plays"
        return [
            (table.name, partial(create_topic, founder, table)),
            (OFFSETS_TOPIC, partial(use_small_segments, founder, OFFSETS_TOPIC, GROUP)),
            (TRANSACTION_TOPIC, partial(use_small_segments, founder, TRANSACTION_TOPIC, TRANSACTION)),
        ]

    def start(self) -> None:
        run, setup, places = self.run, self.run.setup, self.run.tables
        assert setup.forgetting is not None, "it plays"
        random = Random(f"keepers {setup.seed}")
        for number in range(setup.table_writers):
            client, is_idempotent = run.client(f"w{number}"), random.random() < 0.7
            place = random.choice(places)
            run.start(
                client,
                TableWriter(client, place, idempotent=is_idempotent, pace_s=run.pace_s, slows_after=run.slows_after),
            )
        for number in range(setup.transactional_table_writers):
            client = run.client(f"b{number}")
            run.start(client, TransactionalTableWriter(client, places, pace_s=run.pace_s))
        client = run.client("table reader")
        run.start(client, TableReader(client, places, setup.forgetting, pace_s=4.0))
