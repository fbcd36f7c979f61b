"""Reads records of a topic: finds start and end positions, and fetches the records between them."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import AsyncGenerator, Callable

from kpybroker.client.client import EARLIEST, FIRST_PAUSE_S, LATEST, Client, CommandFailed, check
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.aborted_filter import AbortedFilter
from kpybroker.wire.records.batch import Batch, Record, read_records, whole_batches
from kpybroker.wire.rpc import fetch

FETCH_BYTES = 1 << 20
"""The most bytes per partition and request. A larger batch is still returned whole."""
REPLY_BYTES = 16 << 20
WAIT_MS = 500
TAIL_MAX = 10_000
"""The most records for --tail, because they are all held in memory before they are printed."""
TAIL_STEP = 4


async def find_start(
    client: Client, topic: str, partitions: list[int], place: int | None, time_ms: int
) -> dict[int, int]:
    """Start offsets by partition: `place` (checked against the log), or the offset for EARLIEST, LATEST or a time.

    Raises CommandFailed, KafkaError.
    """
    if place is None:
        found = await client.list_offsets({(topic, partition): time_ms for partition in partitions})
        ends = {} if -1 not in found.values() else await find_ends(client, topic, partitions)
        return {partition: ends[partition] if at < 0 else at for (_, partition), at in found.items()}
    starts = await client.list_offsets({(topic, partition): EARLIEST for partition in partitions})
    ends = await find_ends(client, topic, partitions)
    for partition in partitions:
        start = starts[topic, partition]
        if not start <= place <= ends[partition]:
            raise CommandFailed(
                f"offset {place} is outside {topic}-{partition}, which holds {start} to {ends[partition] - 1}"
                if ends[partition] > start
                else f"offset {place} is outside {topic}-{partition}, which is empty and starts at {start}"
            )
    return dict.fromkeys(partitions, place)


async def find_ends(
    client: Client, topic: str, partitions: list[int], *, until_some: bool = False, committed: bool = False
) -> dict[int, int]:
    """The offset after the last readable record, by partition.

    `until_some`: the topic is new, so wait for its first record, at most the client's timeout. `committed`: the last
    stable offset, before which no transaction is open.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + client.timeout_ms / 1000
    while True:
        asked = {(topic, partition): LATEST for partition in partitions}
        found = await client.list_offsets(asked, committed=committed)
        if not until_some or any(found.values()) or clock() + FIRST_PAUSE_S > deadline:
            return {partition: found[topic, partition] for partition in partitions}
        await asyncio.sleep(FIRST_PAUSE_S)


class TopicReader:
    """Reads records of one topic from `positions` up to `ends`, or without an end if `ends` is None.

    committed: leave out the records of open and aborted transactions.
    on_batch: called with the partition and each batch that was read, including those that are left out.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        positions: dict[int, int],
        ends: dict[int, int] | None,
        *,
        committed: bool = False,
        on_batch: Callable[[int, Batch], None] | None = None,
    ) -> None:
        self._client = client
        self._on_batch = on_batch
        self._committed = committed
        self._topic = topic
        self.positions = positions
        self._ends = ends

    def _left(self) -> list[int]:
        ends = self._ends
        return sorted(p for p, at in self.positions.items() if ends is None or at < ends[p])

    async def pages(self) -> AsyncGenerator[list[tuple[int, Record]], None]:
        """Yields the (partition, record) pairs of each round of requests, in order within a partition; [] if there are
        none.

        Raises CommandFailed, KafkaError, OSError.
        """
        while left := self._left():
            yield await self._client.patiently(functools.partial(self._fetch, left))

    async def _fetch(self, partitions: list[int]) -> list[tuple[int, Record]]:
        topic = await self._client.topic(self._topic)
        leaders: dict[int, list[int]] = {}
        for partition in topic.partitions:
            if partition.partition_index in partitions:
                leaders.setdefault(partition.leader_id, []).append(partition.partition_index)
        answers = await asyncio.gather(
            *(self._client.ask("Fetch", self._request(topic.topic_id, led), node=node) for node, led in leaders.items())
        )
        found: list[tuple[int, Record]] = []
        for response in answers:
            check(response.error_code)
            for row in (row for answered in response.responses for row in answered.partitions):
                found.extend(self._take(row))
        return found

    def _request(self, topic_id: bytes, partitions: list[int]) -> fetch.Request:
        return fetch.Request(
            max_wait_ms=min(WAIT_MS, self._client.timeout_ms // 2),
            min_bytes=1,
            max_bytes=REPLY_BYTES,
            session_epoch=-1,
            isolation_level=int(self._committed),
            topics=[
                fetch.FetchTopic(
                    topic=self._topic,
                    topic_id=topic_id,
                    partitions=[
                        fetch.FetchPartition(
                            partition=partition,
                            fetch_offset=self.positions[partition],
                            partition_max_bytes=FETCH_BYTES,
                        )
                        for partition in partitions
                    ],
                )
            ],
        )

    def _take(self, row: fetch.PartitionData) -> list[tuple[int, Record]]:
        """The records in one partition's response. Advances the partition's position."""
        partition = row.partition_index
        at = self.positions[partition]
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise CommandFailed(
                f"offset {at} of {self._topic}-{partition} was deleted (retention or DeleteRecords); start at a later "
                "offset, or with --from-beginning"
            )
        check(row.error_code, f"reading {self._topic}-{partition} at {at}")
        found: list[tuple[int, Record]] = []
        assert not isinstance(row.records, list), "records parsed from a response are contiguous"
        aborted = AbortedFilter(row.aborted_transactions or ())
        for batch in whole_batches(row.records):
            if not batch.crc_ok():
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch {batch.base_offset} of {self._topic}-{partition}")
            if self._on_batch is not None:
                self._on_batch(partition, batch)
            if aborted.lets_through(batch):
                for record in read_records(batch):
                    if record.offset >= at and (self._ends is None or record.offset < self._ends[partition]):
                        found.append((partition, record))
            self.positions[partition] = max(self.positions[partition], batch.next_offset)
        return found


async def last_records(
    client: Client, topic: str, partitions: list[int], count: int
) -> tuple[list[tuple[int, Record]], dict[int, int]]:
    """The last `count` records of all partitions together, by timestamp, and the positions after them.

    Offsets may have gaps (compaction, transaction markers): if too few records are found, it reads from further back.
    """
    ends = await find_ends(client, topic, partitions)
    starts = await client.list_offsets({(topic, partition): EARLIEST for partition in partitions})
    found: dict[int, deque[Record]] = {}
    back = dict.fromkeys(partitions, count)
    todo = list(partitions)
    while todo:
        positions = {each: max(starts[topic, each], ends[each] - back[each]) for each in todo}
        for each in todo:
            found[each] = deque(maxlen=count)
        begun = dict(positions)
        async for page in TopicReader(client, topic, positions, {each: ends[each] for each in todo}).pages():
            for partition, record in page:
                found[partition].append(record)
        todo = [each for each in todo if len(found[each]) < count and begun[each] > starts[topic, each]]
        for each in todo:
            back[each] *= TAIL_STEP
    every = [(partition, record) for partition in partitions for record in found[partition]]
    # a stable sort: records of a partition with equal timestamps stay in order
    every.sort(key=lambda each: each[1].timestamp)
    return every[-count:], ends
