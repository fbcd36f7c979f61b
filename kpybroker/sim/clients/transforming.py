"""Clients that consume, transform and produce. Their transactions have the outputs and the offsets of the inputs."""

from __future__ import annotations

from kpybroker.errors import ErrorCode
from kpybroker.sim.clients.classic_members import ClassicMembership
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.consuming import Consumer
from kpybroker.sim.clients.transacting import (
    ABORT_ODDS,
    GONE_S,
    SLOWS_AFTER,
    TV1,
    TV2,
    ClientDied,
    TransactionalSession,
)
from kpybroker.sim.world.history import Sent
from kpybroker.topics import TopicPartition

TWINS, TEAM = "twin transformers", "team"
"""The group of transformers that share a transactional id, and the group of transformers that share partitions."""
TAKEN_MAX, TAKEN_BYTES = 10, 700
"""The most records and bytes in one transaction. The smallest segments cannot hold a batch of more than 900 bytes."""
COPY_BYTES = 60
"""The most bytes that an output has besides its input: names, attempt, the record's own fields."""
PATIENT = 5
"""After so many failures without a transaction in between, a transformer pauses for longer: otherwise, twins may fence
each other forever."""
UNSTABLE = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)


def output_of(group: str, value: bytes, attempt: str) -> bytes:
    """The output for an input. `attempt` makes it unique, because aborted outputs are written again."""
    return b"%s>%s#%s" % (group.encode(), value, attempt.encode())


def input_of(group: str, output: bytes) -> bytes | None:
    """The input of an output of this group; None for other records."""
    name, arrow, rest = output.partition(b">")
    return rest.rpartition(b"#")[0] if arrow and name == group.encode() else None


class Transformer:
    """Copies committed records to another partition, each exactly once.

    A team member has its own transactional id, and copies the partitions that its group assigns to it (KIP-447). Twins
    have the same transactional id and copy all partitions; the twin that starts last fences the first one.
    """

    def __init__(
        self,
        client: SimClient,
        group: str,
        sources: list[TopicPartition],
        target: TopicPartition,
        *,
        is_member: bool,
        pace_s: float,
    ) -> None:
        self._client = client
        self._group = group
        self._sources = sources
        self._target = target
        self._is_member = is_member
        self._pace_s = pace_s
        self._attempts = self._failures = 0
        self._membership = self._newcomer()

    def _newcomer(self) -> ClassicMembership:
        return ClassicMembership(self._client, self._group, topics=tuple(sorted({name for name, _ in self._sources})))

    async def run(self) -> None:
        client = self._client
        transactional_id = client.name if self._is_member else self._group
        while not client.stopping:
            session = TransactionalSession(client, transactional_id, client.random.choice((TV1, TV2)))
            try:
                await session.begin()
                await self._transform(session)
            except (Unanswered, Refused) as failed:
                client.note(f"starts again: {failed}")
                client.forget_coordinator(self._group)
                for name, _ in self._sources:
                    client.forget_topic(name)
                self._failures += 1
                await client.nap(1.0 if self._failures <= PATIENT else client.random.choice(GONE_S))
            except ClientDied:
                self._membership = self._newcomer()
                await client.nap(client.random.choice(GONE_S))

    async def _transform(self, session: TransactionalSession) -> None:
        """Copy records from the committed offsets onwards until a request fails. Raises Unanswered, Refused,
        ClientDied."""
        client, membership = self._client, self._membership
        own = self._sources
        if self._is_member:
            own = await membership.share_of(self._sources)
            client.history.assigned(self._group, membership.generation, client.name, own)
        consumer = Consumer(client, own, max_wait_ms=0, pace_s=self._pace_s, committed=True)
        for place in own:
            consumer.positions[place] = max(await self._position(place), 0)
        while not client.stopping:
            for place, found in consumer.got.items():
                await consumer.fetch(place)
                if found:
                    taken = _fitting(found)
                    await self._copy(session, place, [value for _, value in taken], taken[-1][0] + 1)
                    del found[: len(taken)]
            if self._is_member:
                await membership.beat()
            client.succeeded()
            await client.nap(self._pace_s * (1 + self._attempts / SLOWS_AFTER))

    async def _position(self, place: TopicPartition) -> int:
        """The committed offset, once no pending transaction can change it. Raises Unanswered, Refused."""
        while True:
            try:
                return await self._membership.fetch(place)
            except Refused as refused:
                if refused.code != UNSTABLE:
                    raise
            if self._is_member:
                await self._membership.beat()
            await self._client.nap(0.5)

    async def _copy(
        self, session: TransactionalSession, place: TopicPartition, values: list[bytes], position: int
    ) -> None:
        client = self._client
        self._attempts += 1
        client.history.transactions.append(session.transaction)
        attempt = f"{client.name}.{self._attempts}"
        outputs = [output_of(self._group, value, attempt) for value in values]
        await session.write(self._target, [Sent(output, self._target, -1, True) for output in outputs])
        commits = client.history.committed(self._group, place)
        commits.send(position)
        await session.commit_offset(self._membership, place, position)
        if client.random.random() < ABORT_ODDS / 2:
            await session.end(commit=False)
            raise Refused(int(ErrorCode.TRANSACTION_ABORTABLE))  # repeat the whole transaction
        await session.end(commit=True)
        commits.acknowledge(position)
        self._failures = 0
        client.succeeded()  # a pass over many partitions may rarely complete


def _fitting(found: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The first records whose outputs fit into one batch; at least one record."""
    count = size_bytes = 0
    for _, value in found[:TAKEN_MAX]:
        size_bytes += len(value) + COPY_BYTES
        if count and size_bytes > TAKEN_BYTES:
            break
        count += 1
    return found[:count]
