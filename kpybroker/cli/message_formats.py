"""Finds the oldest message format in each partition's log, with Fetch requests, one at a time.

Messages of the formats 0 and 1 are the oldest of a log, so its first batch tells, unless the log was compacted: Apache
Kafka 4.3 rewrites what it compacts in format 2, from the start of the log. Such a batch has no leader epoch. Batches of
old formats that are left come after it, and before all batches with an epoch: a binary search finds the last batch
without one. A log whose format was once lowered (`message.format.version`, before Apache Kafka 4.0) is not recognized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kpybroker.cli.cluster_facts import ASKED_MAX
from kpybroker.client.client import EARLIEST, STORAGE_ERROR, Client, CommandFailed, Reasons, check
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import HEADER_BYTES, MAGIC_AT, Batch
from kpybroker.wire.rpc import fetch, list_offsets
from kpybroker.wire.rpc.metadata import MetadataResponseTopic

STEPS = ((1024, 4 << 10), (16, 256 << 10), (1, 1))
"""The partitions in one Fetch, and the bytes for each. A leader leaves out a first batch that is larger, except for the
first partition with records, which get the next step: alone, a batch of any size is returned."""
FETCHES_MAX = 2000
"""The most Fetch requests to one broker."""
SERVED_FORMAT = 2


class LogFormats(NamedTuple):
    """The oldest format in each log, unless it has no batch, and why the others are not known."""

    oldest: dict[TopicPartition, int]
    unknown: Reasons


async def look(
    client: Client, topics: Iterable[MetadataResponseTopic], tell: Callable[[int, int], None] = lambda done, total: None
) -> LogFormats:
    """Ask the leaders of all partitions. `tell` is called with the number of partitions that are done, and of all."""
    found = LogFormats({}, {})
    leaders: dict[int, list[TopicPartition]] = {}
    ids: dict[str, bytes] = {}
    for topic in topics:
        name = topic.name or ""
        ids[name] = topic.topic_id
        for row in topic.partitions:
            if row.leader_id in client.brokers:
                leaders.setdefault(row.leader_id, []).append((name, row.partition_index))
            else:
                found.unknown[name, row.partition_index] = "it has no leader"
    total = sum(map(len, leaders.values()))
    begun = 0

    def moved(left: int) -> None:
        tell(begun - left, total)

    for node, led in sorted(leaders.items()):
        begun += len(led)
        await _Search(client, node, ids, found).run(sorted(led), moved)
    return found


class _Search:
    """The requests to one leader."""

    def __init__(self, client: Client, node: int, ids: Mapping[str, bytes], found: LogFormats) -> None:
        self._client = client
        self._node = node
        self._ids = ids
        self._names = {topic_id: name for name, topic_id in ids.items()}
        self._found = found
        self._left: dict[TopicPartition, int] = {}
        """The partitions whose format is not known yet, and the start offsets of their logs."""
        self._converted: dict[TopicPartition, tuple[int, int]] = {}
        """The partitions that begin with a batch without an epoch, the offset after it, and the high watermark."""
        self._fetches = 0

    async def run(self, led: list[TopicPartition], tell: Callable[[int], None]) -> None:
        """Ask for these partitions. `tell` is called with the number of those that are left."""
        self._left = dict.fromkeys(led, 0)
        try:
            for at in range(0, len(led), ASKED_MAX):
                await self._find_starts(led[at : at + ASKED_MAX])
            for count, size in STEPS:
                await self._step(count, size, tell)
            for place in list(self._converted):
                await self._find_last_converted(place)
                tell(len(self._converted))
        except (CommandFailed, KafkaError, OSError, MalformedFrame) as error:
            self._give_up(str(error) or f"broker {self._node} does not respond")

    def _give_up(self, why: str) -> None:
        self._found.unknown.update(dict.fromkeys([*self._left, *self._converted], why))
        self._left.clear()
        self._converted.clear()

    async def _find_starts(self, places: list[TopicPartition]) -> None:
        topics: dict[str, list_offsets.ListOffsetsTopic] = {}
        for name, index in places:
            topic = topics.setdefault(name, list_offsets.ListOffsetsTopic(name=name, partitions=[]))
            topic.partitions.append(list_offsets.ListOffsetsPartition(partition_index=index, timestamp=EARLIEST))
        request = list_offsets.Request(replica_id=-1, timeout_ms=self._client.timeout_ms, topics=list(topics.values()))
        response = await self._client.ask("ListOffsets", request, node=self._node)
        for answer in response.topics:
            for row in answer.partitions:
                place = answer.name, row.partition_index
                if row.error_code:
                    self._refused(place, row.error_code)
                else:
                    self._left[place] = row.offset

    def _refused(self, place: TopicPartition, code: int) -> None:
        del self._left[place]
        self._found.unknown[place] = _reason(self._node, code)

    async def _step(self, count: int, size: int, tell: Callable[[int], None]) -> None:
        places = list(self._left)
        for at in range(0, len(places), count):
            rows = await self._fetch({place: self._left[place] for place in places[at : at + count]}, size)
            for place, row in rows.items():
                self._take(place, row, is_alone=count == 1)
            tell(len(self._left) + len(self._converted))

    async def _fetch(self, offsets: dict[TopicPartition, int], size: int) -> dict[TopicPartition, fetch.PartitionData]:
        if self._fetches == FETCHES_MAX:
            raise CommandFailed(f"not looked at, after {FETCHES_MAX} requests to broker {self._node}")
        self._fetches += 1
        topics: dict[str, fetch.FetchTopic] = {}
        for (name, index), offset in offsets.items():
            topic = topics.setdefault(name, fetch.FetchTopic(topic=name, topic_id=self._ids[name], partitions=[]))
            topic.partitions.append(
                fetch.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=size)
            )
        request = fetch.Request(max_bytes=len(offsets) * size, session_epoch=-1, topics=list(topics.values()))
        response: fetch.Response = await self._client.ask("Fetch", request, node=self._node)
        check(response.error_code)
        return {
            (topic.topic or self._names[topic.topic_id], row.partition_index): row
            for topic in response.responses
            for row in topic.partitions
        }

    def _take(self, place: TopicPartition, row: fetch.PartitionData, *, is_alone: bool) -> None:
        if row.error_code:
            self._refused(place, row.error_code)
            return
        batch = _first_batch(row)
        if batch is None and not is_alone and self._left[place] < row.high_watermark:
            return  # its first batch is too large for this step
        del self._left[place]
        if isinstance(batch, Batch) and batch.leader_epoch < 0:
            self._converted[place] = batch.next_offset, row.high_watermark
        elif batch is not None:
            self._found.oldest[place] = batch.magic if isinstance(batch, Batch) else batch

    async def _find_last_converted(self, place: TopicPartition) -> None:
        low, high = self._converted[place]
        oldest = SERVED_FORMAT
        while low < high and oldest == SERVED_FORMAT:
            middle = (low + high) // 2
            row = (await self._fetch({place: middle}, 1))[place]
            if row.error_code:
                self._found.unknown[place] = _reason(self._node, row.error_code)
                break
            batch = _first_batch(row)
            if isinstance(batch, int):
                oldest = batch
            elif batch is None or batch.leader_epoch >= 0:
                high = middle
            else:
                low = batch.next_offset
        else:
            self._found.oldest[place] = oldest
        del self._converted[place]


def _first_batch(row: fetch.PartitionData) -> Batch | int | None:
    """The first batch, or its format if that is another one; None if there is no batch."""
    assert not isinstance(row.records, list), "records parsed from a response are contiguous"
    if not row.records or len(row.records) <= MAGIC_AT:
        return None
    magic = row.records[MAGIC_AT]
    return Batch(memoryview(row.records)) if magic == SERVED_FORMAT and len(row.records) >= HEADER_BYTES else magic


def _reason(node: int, code: int) -> str:
    if code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        return f"the user of this command may not read it ({ErrorCode(code).name})"
    if code == ErrorCode.KAFKA_STORAGE_ERROR:
        return STORAGE_ERROR.format(node)
    name = ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"error code {code}"
    return f"its leader, broker {node}, answered {name}; run this again"
