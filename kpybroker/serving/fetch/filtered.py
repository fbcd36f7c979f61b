"""The Fetch of a consumer that reads views, and perhaps topics as well.

The partitions of views are read from their sources, one chunk after another, until enough matching records were found.
A Fetch of a long stretch without a match ends after READ_MAX_BYTES, or when `max_wait_ms` have passed, with a batch
without records, so that the consumer goes on after the stretch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.replication.partition.stretches import Scanned
from kpybroker.serving.fetch.consumer import ConsumerView
from kpybroker.serving.fetch.many import LookedAt, ManyFetchReply
from kpybroker.serving.fetch.nearby import nearest
from kpybroker.serving.fetch.scan import Limits, Scan
from kpybroker.wire.rpc.fetch import AbortedTransaction, PartitionData

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kpybroker.broker.broker import Broker
    from kpybroker.call import Call
    from kpybroker.metadata.views import TopicView
    from kpybroker.replication.partition.flush_queue import Waiter
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.replication.partition.sessions import Session, Want
    from kpybroker.storage.log.log import Log
    from kpybroker.wire.rpc.fetch import Request

READ_MAX_BYTES = 64 << 20
"""How many bytes of sources one Fetch reads at most."""
FOUND_ENOUGH_BYTES = 1 << 20
"""How many matching bytes of a partition are enough for a response, even if `min_bytes` asks for more: they are kept in
memory while the Fetch waits."""


def view_of(broker: Broker, want: Want) -> TopicView | None:
    """The view that a want reads; None if it reads a topic."""
    topic = want.topic if want.topic is not None else broker.metadata.topic_name(want.topic_id)
    return None if topic is None else broker.metadata.image.view(topic)


def reads_views(broker: Broker, wants: Iterable[Want]) -> bool:
    """Whether any of the wants reads a view."""
    return any(view_of(broker, want) is not None for want in wants)


class FilteredView(ConsumerView):
    """The view for a Fetch with views. The wants of views never refer to the partition of the source: only this class
    may read it for them."""

    __slots__ = ("_reply", "sources")

    def __init__(
        self, broker: Broker, call: Call, request: Request, session: Session | None, wants: list[Want]
    ) -> None:
        super().__init__(broker, call, request, session, wants)
        self.sources: dict[Want, Partition] = {}
        """The partitions that are read for the wants of views."""
        self._reply: Waiter | None = None

    def begin_row(self, want: Want, view: TopicView) -> tuple[PartitionData, Partition, int]:
        """The row of a partition of a view without records, the partition of the source, and the exclusive offset up to
        which it may be read. Raises KafkaError, Damage."""
        self.require_read(want)
        partition = self.hosted(view.source, want.index)
        if self.sources.get(want) is not partition:
            self.sources[want] = partition
            if self._reply is not None:
                self.watch(self._reply)
        if want.leader_epoch != -1:
            partition.check_epoch(want.leader_epoch)
        storage = partition.log
        row = self.empty_row(want, storage)
        if not storage.start <= want.fetch_offset <= storage.end:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if self.request.rack_id and self.broker.config.is_rack_aware:
            found = nearest(self.broker, partition, want.fetch_offset, self.request.rack_id, self.call.listener)
            row.preferred_read_replica = -1 if found is None else found
        return row, partition, self.upper(partition)

    def watch(self, reply: Waiter) -> None:
        self._reply = reply
        self.unwatch(reply)
        super().watch(reply)
        for partition in self.sources.values():
            partition.fetches[reply] = None
            self._watched.append(partition)


class FilteredFetchReply(ManyFetchReply):
    """The reply to a Fetch with views. It keeps what it has found while it waits for more."""

    __slots__ = ("_filtered", "_scans")

    def __init__(self, view: FilteredView) -> None:
        super().__init__(view)
        self._filtered = view
        self._scans: dict[Want, Scan] = {}

    async def _look_at(self, want: Want, room_bytes: int, *, is_first: bool) -> LookedAt:
        of = view_of(self.view.broker, want)
        if of is None:
            return await super()._look_at(want, room_bytes, is_first=is_first)
        try:
            return await self._look_through(want, of, room_bytes, is_first=is_first)
        except (KafkaError, Damage) as error:
            self._scans.pop(want, None)
            row, _, is_urgent = self.view.refuse(want, error)
            return LookedAt(row, 0, is_urgent)

    async def _look_through(self, want: Want, of: TopicView, room_bytes: int, *, is_first: bool) -> LookedAt:
        row, partition, upper = self._filtered.begin_row(want, of)
        if row.preferred_read_replica >= 0:
            return LookedAt(row, 0, True)
        scan = self._scans.get(want)
        scanned = Scanned(partition.topic_id, partition.index, of.where)
        if scan is None or scan.scanned != scanned:
            scan = self._scans[want] = Scan(scanned, want.fetch_offset, self.view.broker.replication.stretches)
        limit_bytes = min(want.max_bytes, room_bytes)
        committed = self._filtered.is_committed
        while scan.position < upper and not scan.is_full and self._may_read(scan, limit_bytes, is_first=is_first):
            await self._read_on(scan, partition.log, Limits(upper, limit_bytes, is_first, committed))
        row.records = scan.records()
        if committed:
            row.aborted_transactions = [
                AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
                for each in scan.aborted()
            ]
        is_urgent = scan.size_bytes >= FOUND_ENOUGH_BYTES or (scan.position < upper and scan.read_bytes > 0)
        return LookedAt(row, scan.size_bytes, is_urgent)

    async def _read_on(self, scan: Scan, log: Log, limits: Limits) -> None:
        broker = self.view.broker
        await broker.replication.scans.enter(None)
        try:
            await scan.go_on(log, limits, broker.storage.log_dirs.sliced_work)
        finally:
            broker.replication.scans.leave()

    def _may_read(self, scan: Scan, limit_bytes: int, *, is_first: bool) -> bool:
        """Whether to read another chunk: not if there is enough, and not if the Fetch has read for too long."""
        if scan.size_bytes >= limit_bytes and not (is_first and not scan.size_bytes):
            return False
        read_bytes = sum(each.read_bytes for each in self._scans.values())
        return not read_bytes or (read_bytes < READ_MAX_BYTES and not self._must_answer)


def begin_filtered(
    broker: Broker, call: Call, request: Request, session: Session | None, wants: list[Want]
) -> ManyFetchReply:
    """The reply to a Fetch with views, which has begun to read its partitions."""
    return FilteredFetchReply(FilteredView(broker, call, request, session, wants)).begin()
