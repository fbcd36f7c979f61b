"""Writers of the topic that a share group consumes, with transactions and without."""

from __future__ import annotations

from collections.abc import Sequence

from kpybroker.sim.actors.requests import produced
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.transacting import ABORT_ODDS, GONE_S, TV1, TV2, ClientDied, TransactionalSession
from kpybroker.sim.world.history import Sent
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import encode_batch

SLOWS_AFTER = 60
"""After this many records a writer pauses twice as long, and so on."""


class ShareWriter:
    """Writes batches to random partitions, each at most once."""

    def __init__(self, client: SimClient, places: Sequence[TopicPartition], *, pace_s: float) -> None:
        self._client = client
        self._places = places
        self._pace_s = pace_s
        self._number = 0
        self.has_ended = False

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                await self.write(client.random.choice(self._places), client.random.choice((1, 1, 2, 6)))
                client.succeeded()
                await client.nap(self._pace_s * (1 + self._number / SLOWS_AFTER))
            except (Unanswered, Refused) as failed:
                client.note(f"cannot write: {failed}")
                await client.nap(0.5)
        self.has_ended = True

    def sents(self, place: TopicPartition, count: int) -> list[Sent]:
        """New records."""
        self._number += count
        name = self._client.name.encode()
        return [Sent(b"%s/%d" % (name, self._number - left), place, -1, False) for left in range(count)]

    async def write(self, place: TopicPartition, count: int) -> None:
        """Write one batch. Raises Unanswered, Refused."""
        client, sents = self._client, self.sents(place, count)
        for sent in sents:
            client.history.sends(client.name, sent)
        batch = encode_batch([sent.stored for sent in sents], timestamp_ms=client.wall_ms())
        try:
            base, _, _ = await produced(client, place, bytes(batch))
        except (Unanswered, Refused):
            client.forget_topic(place[0])
            raise
        for number, sent in enumerate(sents):
            client.history.acked(sent, base + number)


class ShareTransactor(ShareWriter):
    """Writes transactions over several partitions, and aborts some."""

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            session = TransactionalSession(client, client.name, client.random.choice((TV1, TV2)))
            try:
                await session.begin()
                while not client.stopping:
                    for _ in range(client.random.randint(1, 3)):
                        place = client.random.choice(self._places)
                        await session.write(place, self.sents(place, client.random.choice((1, 2))))
                    await session.end(commit=client.random.random() >= ABORT_ODDS)
                    client.succeeded()
                    await client.nap(self._pace_s * (1 + self._number / SLOWS_AFTER))
            except (Unanswered, Refused) as failed:
                client.note(f"gives up a transaction: {failed}")
                await client.nap(1.0)
            except ClientDied:
                await client.nap(client.random.choice(GONE_S))
        self.has_ended = True
