"""The processing of one ShareFetch, which reads the partitions of its session and acquires records if there are enough.

Records are read and acquired in the same turn of the event loop, so no other ShareFetch can acquire them in between. A
ShareFetch that finds too few records waits for more, for the end of an acquisition lock, or for `max_wait_ms`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from kpybroker.call import Reply
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.replication.partition.partition import Partition
from kpybroker.serving.shares.places import Leaders, check_read, found
from kpybroker.shares.leader import LedSharePartition
from kpybroker.shares.partition import Acquired, Span, Wish
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.records.batch import outline, split
from kpybroker.wire.rpc.share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    Response,
    ShareFetchableTopicResponse,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.call import Call
    from kpybroker.serving.shares.acknowledging import Answers
    from kpybroker.shares.sessions import ShareSession
    from kpybroker.wire.rpc.share_fetch import Request
    from kpybroker.world import Buffer

EXACT = 1
"""The ShareAcquireMode that acquires at most max_records (KIP-1206)."""
EMPTY = b""


class Candidate(NamedTuple):
    """A partition that may have records, with the offset at which to begin reading and the exclusive end offset."""

    place: TopicIdPartition
    partition: Partition
    led: LedSharePartition
    offset: int
    upper: int


class Reading(NamedTuple):
    """A read of one partition."""

    candidate: Candidate
    last: int | None
    """The last record that the fetch can acquire: no later batch has to be read. None: read `most_bytes`."""
    most_bytes: int

    def size_bytes(self) -> int | None:
        """The number of bytes to read; None if the index has to be loaded first. Raises KafkaError."""
        if self.last is None:
            return self.most_bytes
        needed = self.candidate.partition.log.bytes_up_to(self.candidate.offset, self.last)
        return None if needed is None else min(needed, self.most_bytes)


class Cold(NamedTuple):
    """The result of a read that ended because it has to wait for the disk."""

    reading: Reading


class ShareView:
    """The partitions that one ShareFetch reads. `acknowledged` contains the results of its acknowledgements."""

    def __init__(
        self, broker: Broker, call: Call, request: Request, session: ShareSession, acknowledged: Answers
    ) -> None:
        self.broker = broker
        self.call = call
        self.request = request
        self.session = session
        self.cold: dict[TopicIdPartition, tuple[int, Buffer]] = {}
        """Bytes that were read from the disk for the next read of a partition, each with its offset."""
        self._acknowledged = acknowledged
        self._rules = broker.coordinators.share_leader.rules(session.key.group_id)
        self._places = session.in_turn()
        self._watched: list[Partition] = []
        self._awaited: dict[TopicIdPartition, LedSharePartition] = {}
        """The share partitions of the last read."""

    # ---- reading

    def answer(self, *, final: bool) -> Response | Cold | None:
        """The response; None to wait for more records; Cold if bytes must be read from the disk first. If `final`, the
        result is not None."""
        rows: dict[TopicIdPartition, PartitionData] = {}
        candidates = []
        is_awaited = False
        for place in () if self.request.is_renew_ack else self._places:
            try:
                candidate = self._candidate(place)
            except (KafkaError, Damage) as error:
                rows[place] = _refused(place, error)
                continue
            if candidate is None:
                is_awaited = True
            elif candidate.offset < candidate.upper:
                candidates.append(candidate)
        most_bytes = min(self.request.max_bytes, self.broker.quotas.fetch_max_bytes) // max(len(candidates), 1)
        read = self._read_least(candidates, most_bytes)
        if isinstance(read, Cold):
            return read
        total_bytes = sum(len(records) for records in read.values())
        is_enough = bool(total_bytes) and total_bytes >= min(self.request.min_bytes, self.request.max_bytes)
        has_refusals = bool(rows) and not is_awaited  # wait for partitions that load: they may be refused, too
        if not (final or is_enough or has_refusals) and self._places:
            return None
        cold = self._acquire_in_turn(candidates, read, most_bytes, rows)
        acquired = any(row.acquired_records for row in rows.values())
        if not (acquired or any(row.error_code for row in rows.values())) and (cold is not None or not final):
            return cold  # all records that were read are archived, because they were aborted or delivered too often
        return self._respond(rows)

    def _candidate(self, place: TopicIdPartition) -> Candidate | None:
        """The offsets to read; None while the share partition is being loaded. Raises KafkaError, Damage."""
        topic = check_read(self.broker, self.call, place)
        earlier = self._awaited.get(place)
        if earlier is not None and earlier.refusal is not None:  # do not load it again for the same Fetch
            raise earlier.refusal
        partition, led = found(self.broker, self.session.key.group_id, topic, place)
        self._awaited[place] = led
        if led.share is None:
            return None
        led.expire()
        storage = partition.log
        led.share.cut_start(storage.start)
        offset = led.share.next_offset(self._rules.limits)
        upper = storage.last_stable if self._rules.is_committed else storage.high_watermark
        led.note_upper(upper)
        if offset is None:
            return Candidate(place, partition, led, upper, upper)
        return Candidate(place, partition, led, max(offset, storage.start), upper)

    def _read_least(self, candidates: list[Candidate], most_bytes: int) -> dict[TopicIdPartition, Buffer] | Cold:
        """Read one partition after another until there are min_bytes; at least one batch from the first."""
        read: dict[TopicIdPartition, Buffer] = {}
        lacking_bytes = max(min(self.request.min_bytes, self.request.max_bytes), 1)
        for candidate in candidates if self.request.max_records > 0 else ():
            if lacking_bytes <= 0:
                break
            reading = self._reading(candidate, self.request.max_records, most_bytes)
            records = self._read(reading, min_one=not read)
            if not isinstance(records, Cold) and len(records) < lacking_bytes:
                # records that this fetch cannot acquire count, too
                records = self._read(reading._replace(last=None), min_one=not read)
            if isinstance(records, Cold):
                return records
            if records:
                read[candidate.place] = records
                lacking_bytes -= len(records)
        return read

    def _reading(self, candidate: Candidate, max_records: int, most_bytes: int) -> Reading:
        """The batches that may be acquired. To copy more would take longer than all other work of a fetch."""
        share = candidate.led.share
        assert share is not None, "only loaded share partitions are candidates"
        last = share.last_within_reach(candidate.offset, max_records, self._rules.limits)
        return Reading(candidate, last, most_bytes)

    def _read(self, reading: Reading, *, min_one: bool) -> Buffer | Cold:
        candidate = reading.candidate
        at, kept = self.cold.get(candidate.place, (-1, EMPTY))
        if at == candidate.offset:
            return kept
        size_bytes = reading.size_bytes()
        if size_bytes is None:
            return Cold(reading)
        records = candidate.partition.log.read(candidate.offset, size_bytes, upper=candidate.upper, min_one=min_one)
        return Cold(reading) if records is None else records

    # ---- acquiring

    def _acquire_in_turn(
        self,
        candidates: list[Candidate],
        read: dict[TopicIdPartition, Buffer],
        most_bytes: int,
        rows: dict[TopicIdPartition, PartitionData],
    ) -> Cold | None:
        """Acquire records from one partition after another until there are max_records, and read partitions that are
        not read yet. Returns a read that has to wait for the disk, before which this ends."""
        left = self.request.max_records
        cold = None
        for each in candidates:
            candidate, budget_bytes = each, most_bytes
            records: Buffer | Cold = read.get(candidate.place, EMPTY)
            while left > 0 and budget_bytes > 0 and cold is None:
                if not records:
                    min_one = left == self.request.max_records  # nothing is acquired yet
                    records = self._read(self._reading(candidate, left, budget_bytes), min_one=min_one)
                if isinstance(records, Cold):
                    cold = records
                    break
                acquired = self._acquire(candidate, records, left, rows) if records else 0
                left -= acquired
                offset = candidate.led.share.next_offset(self._rules.limits) if candidate.led.share else None
                if acquired or not records or offset is None or not candidate.offset < offset < candidate.upper:
                    break
                # all of these records are archived, because they were aborted
                budget_bytes -= len(records)
                candidate, records = candidate._replace(offset=offset), EMPTY
        self.cold.clear()
        return cold

    def _acquire(
        self, candidate: Candidate, records: Buffer, left: int, rows: dict[TopicIdPartition, PartitionData]
    ) -> int:
        """Acquire records of one partition. Returns their number."""
        spans, positions = outline(records)
        aborted = self._aborted(candidate, records)
        share = candidate.led.share
        assert share is not None, "only loaded share partitions are candidates"
        wish = Wish(left, self.request.batch_size, is_exact=self.request.share_acquire_mode == EXACT)
        now_ms = self.broker.coordinators.share_leader.clock.now_ms()
        acquired = share.acquire(self.session.key.member_id, spans, wish, self._rules.limits, now_ms, aborted)
        candidate.led.arm()
        if acquired:
            rows[candidate.place] = _row(candidate.place, _cut(records, spans, positions, acquired, aborted), acquired)
        return sum(each.last - each.first + 1 for each in acquired)

    def _aborted(self, candidate: Candidate, records: Buffer) -> list[Span]:
        """The first and last offsets of batches in aborted transactions, if the group reads only committed records."""
        storage = candidate.partition.log
        if not self._rules.is_committed or not storage.segments.any_aborted:
            return []
        ended: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for each in storage.aborted_within(candidate.offset, records):
            ended[each.producer_id].append((each.first_offset, each.last_offset))
        return [
            (batch.base_offset, batch.next_offset - 1)
            for batch in split(memoryview(records))
            if batch.is_transactional
            and not batch.is_control
            and any(first <= batch.base_offset <= last for first, last in ended[batch.producer_id])
        ]

    # ---- the response

    def _respond(self, rows: dict[TopicIdPartition, PartitionData]) -> Response:
        """The response. It contains the partitions that have records or errors, that were acknowledged, or that are new
        to the session."""
        leaders = Leaders(self.broker, self.call)
        topics: dict[bytes, ShareFetchableTopicResponse] = {}
        shown = dict.fromkeys((*self._acknowledged, *self._places))
        for place in shown:
            row = rows.get(place)
            if row is None:
                if place not in self._acknowledged and place not in self.session.unanswered:
                    continue
                row = PartitionData(partition_index=place[1], records=EMPTY)
            refusal = self._acknowledged.get(place)
            if refusal is not None:
                row.acknowledge_error_code, row.acknowledge_error_message = refusal.code, refusal.message
            leaders.hint(row, LeaderIdAndEpoch, place)
            topic = topics.setdefault(place[0], ShareFetchableTopicResponse(topic_id=place[0], partitions=[]))
            topic.partitions.append(row)
        self.session.answered(shown)
        return Response(
            acquisition_lock_timeout_ms=self._rules.limits.lock_ms,
            responses=list(topics.values()),
            node_endpoints=leaders.endpoints(NodeEndpoint),
        )

    # ---- waiting

    def watch(self, reply: ShareFetchReply) -> None:
        """Have `reply.settle` called when records may be available. Called after a read."""
        self.unwatch(reply)
        for place, led in self._awaited.items():
            led.waiters[reply] = None
            partition = self.broker.replication.hosting.leads_id(*place)
            if partition is not None:
                partition.fetches[reply] = None
                self._watched.append(partition)

    def unwatch(self, reply: ShareFetchReply) -> None:
        """Stop watching, because the reply is complete or its connection is closed."""
        for partition in self._watched:
            partition.fetches.pop(reply, None)
        for led in self._awaited.values():
            led.waiters.pop(reply, None)
        self._watched = []


def _cut(
    records: Buffer, spans: list[Span], positions: list[int], acquired: list[Acquired], aborted: list[Span]
) -> list[memoryview | bytes]:
    """The whole batches from the first to the last acquired record, except aborted ones. Neighbours are one view."""
    whole, without = memoryview(records), {first for first, _ in aborted}
    begin = bisect_left(spans, acquired[0].first, key=itemgetter(1))
    end = bisect_right(spans, acquired[-1].last, key=itemgetter(0))
    views: list[memoryview | bytes] = []
    for number in range(begin, end) if without else ():
        if spans[number][0] in without:
            views.append(whole[positions[begin] : positions[number]])
            begin = number + 1
    views.append(whole[positions[begin] : positions[end]])
    return [view for view in views if view]


def _row(place: TopicIdPartition, views: list[memoryview | bytes], acquired: list[Acquired]) -> PartitionData:
    return PartitionData(
        partition_index=place[1],
        records=views[0] if len(views) == 1 else views,
        acquired_records=[
            AcquiredRecords(first_offset=each.first, last_offset=each.last, delivery_count=each.deliveries)
            for each in acquired
        ],
    )


def _refused(place: TopicIdPartition, error: KafkaError | Damage) -> PartitionData:
    if isinstance(error, Damage):
        error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
    return PartitionData(partition_index=place[1], error_code=error.code, error_message=error.message, records=EMPTY)


class ShareFetchReply(Reply):
    """Waits for records, for `max_wait_ms` to pass, or for a read from the disk, and then reads its partitions
    again."""

    __slots__ = ("_task", "_timer", "_view")

    def __init__(self, view: ShareView) -> None:
        super().__init__()
        self._view = view
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def park(self, seen: Cold | None) -> None:
        """Wait for records, or for bytes that must be read from the disk (`seen`)."""
        wait_s = max(self._view.request.max_wait_ms, 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._time_out)
        self._go_on(seen)

    def settle(self) -> None:
        """Read the partitions again, because records may be available."""
        if not self.done and self._task is None:
            self._look(final=False)

    def give_way(self) -> None:
        self._time_out()

    def _time_out(self) -> None:
        if not self.done and self._task is None:
            self._look(final=True)

    def _look(self, *, final: bool) -> None:
        seen = self._view.answer(final=final)
        if isinstance(seen, Response):
            self._release()
            self.complete(seen)
        else:
            self._go_on(seen)

    def _go_on(self, seen: Cold | None) -> None:
        if seen is None:
            self._view.watch(self)
        else:
            self._task = asyncio.get_running_loop().create_task(self._bring(seen))

    async def _bring(self, seen: Cold) -> None:
        """Read bytes that are not in the page cache on another thread, and then read the partitions again."""
        place, partition, _, offset, upper = seen.reading.candidate
        try:
            await partition.log.load_index(offset)
            size_bytes = seen.reading.size_bytes() or 0
            records = await partition.log.read_cold(offset, size_bytes, upper=upper, min_one=True)
            self._view.cold[place] = offset, records
        except (KafkaError, Damage):
            pass  # the next read returns the error
        self._task = None
        self._time_out()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._view.unwatch(self)

    def abandon(self) -> None:
        self.discard()
        self._release()
        if self._task is not None:
            self._task.cancel()


def begin(view: ShareView) -> Response | Reply:
    """Read the partitions once. Return the response, or a reply that waits for more records."""
    seen = view.answer(final=view.request.max_wait_ms <= 0)
    if isinstance(seen, Response):
        return seen
    reply = ShareFetchReply(view)
    reply.park(seen)
    return reply
