"""Consumers that read partitions from the start, request latest offsets, and check every response."""

from __future__ import annotations

from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.world.history import value_of
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.aborted_filter import AbortedFilter
from kpybroker.wire.records.batch import read_records, split
from kpybroker.wire.rpc import fetch, list_offsets

LATEST = -1
EARLIEST = -2
FETCHED_BYTES: tuple[int, ...] = (1, 300, 100_000)
"""Values for the max bytes of a Fetch: for one batch, a few batches, or everything."""
TABLE_BYTES = (2000, 100_000)
"""The same for tables, which are repeatedly read as a whole."""
OUT_OF_RANGE = int(ErrorCode.OFFSET_OUT_OF_RANGE)


async def latest_offset(client: SimClient, place: TopicPartition, *, stable: bool = False) -> int:
    """The latest offset of a partition, or the last stable one. Raises Unanswered, Refused."""
    name, index = place
    leader = await client.leader(name, index)
    row = list_offsets.ListOffsetsPartition(partition_index=index, timestamp=LATEST, current_leader_epoch=leader.epoch)
    topic = list_offsets.ListOffsetsTopic(name=name, partitions=[row])
    least_end = client.history.ledger(place).ends_of(stable=stable).least(leader.epoch)
    request = list_offsets.Request(replica_id=-1, isolation_level=int(stable), topics=[topic])
    response = await client.ask(leader.node_id, "ListOffsets", request)
    answer = response.topics[0].partitions[0]
    if answer.error_code:
        raise Refused(answer.error_code)
    client.history.latest(place, least_end, leader.epoch, answer.offset, stable=stable)
    return int(answer.offset)


async def earliest_offset(client: SimClient, place: TopicPartition) -> int:
    """The earliest offset of a partition. Raises Unanswered, Refused."""
    name, index = place
    leader = await client.leader(name, index)
    row = list_offsets.ListOffsetsPartition(
        partition_index=index, timestamp=EARLIEST, current_leader_epoch=leader.epoch
    )
    topic = list_offsets.ListOffsetsTopic(name=name, partitions=[row])
    response = await client.ask(leader.node_id, "ListOffsets", list_offsets.Request(replica_id=-1, topics=[topic]))
    answer = response.topics[0].partitions[0]
    if answer.error_code:
        raise Refused(answer.error_code)
    return int(answer.offset)


class Consumer:
    """Reads partitions, one Fetch after another. `committed`: read with read_committed.

    `has_gaps`: offsets may be missing, because the partitions are compacted or lose their oldest records.
    """

    def __init__(
        self,
        client: SimClient,
        places: list[TopicPartition],
        *,
        max_wait_ms: int,
        pace_s: float,
        committed: bool = False,
        has_gaps: bool = False,
        source: str | None = None,
    ) -> None:
        self._client = client
        self._committed = committed
        self._has_gaps = has_gaps
        self.positions = dict.fromkeys(places, 0)
        self.got: dict[TopicPartition, list[tuple[int, bytes]]] = {place: [] for place in places}
        """Offsets and values in the order in which they were read."""
        self._max_wait_ms = max_wait_ms
        self._pace_s = pace_s
        self._bytes = FETCHED_BYTES
        self._source = source
        """The topic that has the records, if this consumer reads a view."""

    def kept(self, place: TopicPartition) -> TopicPartition:
        """The partition that has the records of a partition that is read."""
        return self._source or place[0], place[1]

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                for place in self.positions:
                    if client.random.random() < 0.3:
                        await latest_offset(client, place, stable=self._committed)
                    await self.fetch(place)
                client.succeeded()
                await client.nap(self._pace_s)
            except (Unanswered, Refused) as failed:
                client.note(f"cannot read: {failed}")
                for name, _ in self.positions:
                    client.forget_topic(name)
                await client.nap(0.5)

    async def read_to_the_end(self) -> None:
        """Read every partition up to its current latest offset, in large pieces. Raises Unanswered, Refused."""
        self._bytes = TABLE_BYTES if self._has_gaps else FETCHED_BYTES[1:]
        for place in self.positions:
            end = await latest_offset(self._client, place, stable=self._committed)
            while self.positions[place] < end:
                await self.fetch(place)

    async def fetch(self, place: TopicPartition) -> None:
        """Send one Fetch for one partition, and advance the position. Raises Unanswered, Refused."""
        client, (name, index) = self._client, place
        position = self.positions[place]
        leader = await client.leader(name, index)
        row = fetch.FetchPartition(
            partition=index,
            current_leader_epoch=leader.epoch,
            fetch_offset=position,
            partition_max_bytes=client.random.choice(self._bytes),
        )
        topic = fetch.FetchTopic(topic=name, topic_id=leader.topic_id, partitions=[row])
        request: Any = fetch.Request(
            max_wait_ms=self._max_wait_ms, min_bytes=1, isolation_level=int(self._committed), topics=[topic]
        )
        shown = client.history.ledger(place).stable.of(leader.epoch)
        response = await client.ask(leader.node_id, "Fetch", request)
        if response.error_code:
            raise Refused(response.error_code)
        if not response.responses:
            return
        answer = response.responses[0].partitions[0]
        if answer.error_code == OUT_OF_RANGE and not self._has_gaps:
            client.history.breach(f"{client.name} had read {name}-{index} up to {position}, but that is out of range")
        if answer.error_code:
            raise Refused(answer.error_code)
        self._look_at_ends(place, leader.epoch, shown, answer)
        self._take(place, position, leader.epoch, answer)

    def _look_at_ends(self, place: TopicPartition, epoch: int, shown: int, answer: Any) -> None:
        """Check that the last stable offset never goes back within a leader epoch, and is never above the high
        watermark."""
        stable = answer.last_stable_offset
        if not shown <= stable <= answer.high_watermark:
            self._client.history.breach(
                f"the last stable offset of {place[0]}-{place[1]} was {shown} in epoch {epoch}, "
                f"and now is {stable} with the high watermark at {answer.high_watermark}"
            )
        self._client.history.ledger(place).stable.reached(epoch, stable)

    def _take(self, place: TopicPartition, position: int, leader_epoch: int, answer: Any) -> None:
        """Check and store the records of a response. They must begin at the position and have no gaps."""
        client, kept = self._client, self.kept(place)
        chunks = answer.records
        data = b"" if chunks is None else b"".join(chunks) if isinstance(chunks, list) else bytes(chunks)
        try:
            batches = split(memoryview(data)) if data else []
        except KafkaError as unreadable:
            client.history.breach(f"{client.name} got malformed batches from {position} of {place}: {unreadable}")
            raise Refused(unreadable.code) from unreadable
        running = AbortedFilter(answer.aborted_transactions or () if self._committed else ())
        for batch in batches:
            if not batch.crc_ok():
                client.history.breach(f"{client.name} got a batch with a wrong CRC at {batch.base_offset} of {place}")
                raise Refused(int(ErrorCode.CORRUPT_MESSAGE))
            if running.lets_through(batch):
                for record in read_records(batch):
                    if record.offset < position:
                        continue
                    if record.offset != position and not self._has_gaps:
                        client.history.breach(f"{client.name} read {place} from {position} and got {record.offset}")
                    value = value_of(record)
                    client.history.read(client.name, kept, record.offset, batch.leader_epoch, value, leader_epoch)
                    if self._committed:
                        client.history.ledger(kept).seen_committed[record.offset] = value
                    self.got[place].append((record.offset, value))
                    position = record.offset + 1
            position = max(position, batch.next_offset)
        upper = answer.last_stable_offset if self._committed else answer.high_watermark
        if data and position > upper:
            client.history.breach(f"{client.name} got {place} up to {position}, above {upper}")
        self.positions[place] = position
