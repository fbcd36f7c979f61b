"""Those who keep a table, a topic that is compacted: writers with keys of their own, and readers of all of it."""

from __future__ import annotations

import asyncio

from kpybroker.sim.clients.client import Client, Refused, Unanswered
from kpybroker.sim.clients.consuming import Consumer, earliest_offset
from kpybroker.sim.clients.producing import Producer
from kpybroker.sim.clients.transacting import ABORT_ODDS, Session, Transactor
from kpybroker.sim.laws.tables import Forgetting, check_table
from kpybroker.sim.world.history import Place, Sent

TOMBSTONE_ODDS = 0.15
KEYS = (2, 5, 20)
"""How many keys a writer has."""


def keyed(client: Client, sent: Sent, keys: int) -> Sent:
    """The record with one of the client's keys; some are tombstones."""
    key = b"%s:%d" % (client.name.encode(), client.random.randrange(keys))
    is_tombstone = client.random.random() < TOMBSTONE_ODDS
    sent.give_key(key, is_tombstone=is_tombstone, at_s=client.history.now_s)
    return sent


class Keeper(Producer):
    """A producer whose records have keys."""

    def __init__(self, client: Client, place: Place, *, idempotent: bool, pace_s: float, tires_after: int) -> None:
        super().__init__(client, place, acks=-1, idempotent=idempotent, pace_s=pace_s, tires_after=tires_after)
        self._keys = client.random.choice(KEYS)

    def _new_sent(self) -> Sent:
        return keyed(self._client, super()._new_sent(), self._keys)


class Bookkeeper(Transactor):
    """Writes records with keys in transactions, which are not whole any more once some of them are superseded."""

    def __init__(self, client: Client, places: list[Place], *, pace_s: float) -> None:
        super().__init__(client, client.name, places, pace_s=pace_s)
        self._keys = client.random.choice(KEYS)

    async def _transaction(self, session: Session) -> None:
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
    """Reads the whole table, again and again."""

    def __init__(self, client: Client, places: list[Place], forgetting: Forgetting, *, pace_s: float) -> None:
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


async def read_table(client: Client, place: Place) -> tuple[list[tuple[int, bytes]], int]:
    """All committed records of a partition, and up to where they were read. Raises Unanswered, Refused."""
    consumer = Consumer(client, [place], max_wait_ms=100, pace_s=0.0, committed=True, has_gaps=True)
    consumer.positions[place] = await earliest_offset(client, place)
    await consumer.read_to_the_end()
    return consumer.got[place], consumer.positions[place]
