"""Clients of a table (a compacted topic): writers with their own keys, and readers of the whole table."""

from __future__ import annotations

import asyncio

from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.consuming import Consumer, earliest_offset
from kpybroker.sim.clients.producing import SimProducer
from kpybroker.sim.clients.transacting import ABORT_ODDS, TransactionalSession, Transactor
from kpybroker.sim.laws.tables import Forgetting, check_table
from kpybroker.sim.world.history import Sent
from kpybroker.topics import TopicPartition

TOMBSTONE_ODDS = 0.15
KEYS = (2, 5, 20)
"""Possible numbers of keys of a writer."""


def keyed(client: SimClient, sent: Sent, keys: int) -> Sent:
    """Give the record one of the client's keys, and turn some records into tombstones."""
    key = b"%s:%d" % (client.name.encode(), client.random.randrange(keys))
    is_tombstone = client.random.random() < TOMBSTONE_ODDS
    sent.give_key(key, is_tombstone=is_tombstone, at_s=client.history.now_s)
    return sent


class TableWriter(SimProducer):
    """A producer whose records have keys."""

    def __init__(
        self, client: SimClient, place: TopicPartition, *, idempotent: bool, pace_s: float, slows_after: int
    ) -> None:
        super().__init__(client, place, acks=-1, idempotent=idempotent, pace_s=pace_s, slows_after=slows_after)
        self._keys = client.random.choice(KEYS)

    def _new_sent(self) -> Sent:
        return keyed(self._client, super()._new_sent(), self._keys)


class TransactionalTableWriter(Transactor):
    """Writes records with keys in transactions. Compaction may remove superseded records of a transaction."""

    def __init__(self, client: SimClient, places: list[TopicPartition], *, pace_s: float) -> None:
        super().__init__(client, client.name, places, pace_s=pace_s)
        self._keys = client.random.choice(KEYS)

    async def _transaction(self, session: TransactionalSession) -> None:
        client = self._client
        for _ in range(client.random.randint(1, 3)):
            place = client.random.choice(self._places)
            count = client.random.choice((1, 1, 3))
            sents = [keyed(client, Sent(self._value(), place, -1, True), self._keys) for _ in range(count)]
            await session.write(place, sents)
            if client.random.random() < 0.2:
                await asyncio.sleep(client.random.random() * 2)
        await session.end(commit=client.random.random() >= ABORT_ODDS)


class TableReader:
    """Reads the whole table repeatedly."""

    def __init__(
        self, client: SimClient, places: list[TopicPartition], forgetting: Forgetting, *, pace_s: float
    ) -> None:
        self._client = client
        self._places = places
        self._forgetting = forgetting
        self._pace_s = pace_s

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                for place in self._places:
                    since_s = client.history.now_s
                    found, end = await read_table(client, place)
                    check_table(client.history, place, found, self._forgetting, end=end, since_s=since_s)
                client.succeeded()
                await client.nap(self._pace_s)
            except (Unanswered, Refused) as failed:
                client.note(f"cannot read the table: {failed}")
                client.forget_topic(self._places[0][0])
                await client.nap(0.5)


async def read_table(client: SimClient, place: TopicPartition) -> tuple[list[tuple[int, bytes]], int]:
    """All committed records of a partition, and the offset up to which it was read. Raises Unanswered, Refused."""
    consumer = Consumer(client, [place], max_wait_ms=100, pace_s=0.0, committed=True, has_gaps=True)
    consumer.positions[place] = await earliest_offset(client, place)
    await consumer.read_to_the_end()
    return consumer.got[place], consumer.positions[place]
