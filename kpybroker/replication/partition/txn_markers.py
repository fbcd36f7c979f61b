"""Writes the markers that end transactions to partitions that this broker leads (KIP-98, WriteTxnMarkers).

In a partition of `__consumer_offsets`, the group coordinator writes the marker, because it must also apply it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.partition.flush_queue import FlushQueue
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.replication.partition.partition import Partition
from kpybroker.topics import OFFSETS_TOPIC
from kpybroker.wire.records.markers import Marker
from kpybroker.wire.rpc.write_txn_markers import (
    Request,
    Response,
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
)
from kpybroker.world import World

COORDINATORS_WORDS = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
"""The error codes of a group coordinator that are replaced by NOT_LEADER_OR_FOLLOWER, the code that a partition returns
in the same case."""

MARKERS_A_TURN = 200
"""The number of markers after which the writer yields to the event loop."""

Result = WritableTxnMarkerPartitionResult


class TxnMarkers:
    """Writes markers. `in_groups` lets the group coordinator end a transaction in a partition of
    `__consumer_offsets`."""

    def __init__(
        self,
        hosting: Hosting,
        queue: FlushQueue,
        world: World,
        timeout_ms: int,
        in_groups: Callable[[int, Marker, int], asyncio.Future[None]],
    ) -> None:
        self._hosting = hosting
        self._queue = queue
        self._world = world
        self._timeout_ms = timeout_ms
        self._in_groups = in_groups

    async def write(self, request: Request) -> Response:
        """Write all markers, and wait until each is committed or refused. Returns an error code for every partition."""
        waiting: list[tuple[Result, asyncio.Future[None]]] = []
        try:
            return await self._write(request, waiting)
        finally:
            for _, committed in waiting:
                _let_go(committed)

    async def _write(self, request: Request, waiting: list[tuple[Result, asyncio.Future[None]]]) -> Response:
        response = Response(markers=[_unwritten(asked) for asked in request.markers])
        for number, (marker, version, topic, result) in enumerate(_each(request, response), 1):
            try:
                waiting.append((result, self._append(topic, result.partition_index, marker, version)))
            except KafkaError as refusal:
                result.error_code = _in_a_logs_words(refusal.code)
            if number % MARKERS_A_TURN == 0:
                self._queue.flush()
                await asyncio.sleep(0)
        self._queue.flush()
        for result, committed in waiting:
            try:
                await committed
            except KafkaError as refusal:
                result.error_code = _in_a_logs_words(refusal.code)
        return response

    def _append(self, topic: str, index: int, marker: Marker, transaction_version: int) -> asyncio.Future[None]:
        """Append a marker, and return a future that completes when the marker is committed. Raises KafkaError."""
        partition = self._hosting.leads(topic, index)
        if min(marker.producer_id, marker.producer_epoch, transaction_version) < 0:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{marker} has no producer id, epoch or version")
        if topic == OFFSETS_TOPIC:
            partition.log.producers.check_marker(marker, transaction_version)
            return self._in_groups(index, marker, self._timeout_ms)
        end = partition.append_marker(marker, transaction_version, self._world.wall_ms())
        committed = CommitWaiter(partition, end)
        partition.when_committed(end, committed)
        return committed.within(self._timeout_ms)


def _let_go(committed: asyncio.Future[None]) -> None:
    """Cancel a future. If it has failed already, retrieve its exception, so that the event loop does not log it."""
    if not committed.cancel() and not committed.cancelled():
        committed.exception()


def _unwritten(asked: WritableTxnMarker) -> WritableTxnMarkerResult:
    topics = [
        WritableTxnMarkerTopicResult(
            name=topic.name, partitions=[Result(partition_index=index) for index in topic.partition_indexes]
        )
        for topic in asked.topics
    ]
    return WritableTxnMarkerResult(producer_id=asked.producer_id, topics=topics)


def _each(request: Request, response: Response) -> Iterator[tuple[Marker, int, str, Result]]:
    """Yields (marker, transaction version, topic, the result to fill in) for every partition."""
    for asked, told in zip(request.markers, response.markers, strict=True):
        marker = Marker(
            asked.producer_id, asked.producer_epoch, asked.coordinator_epoch, commits=asked.transaction_result
        )
        for topic in told.topics:
            for result in topic.partitions:
                yield marker, asked.transaction_version, topic.name, result


def _in_a_logs_words(code: ErrorCode) -> ErrorCode:
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in COORDINATORS_WORDS else code


class CommitWaiter:
    """Waits until the high watermark of a partition reaches an offset."""

    def __init__(self, partition: Partition, end: int) -> None:
        self._partition = partition
        self._end = end
        self._reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self) -> None:
        """End the wait, if the marker is committed or cannot be committed by this leader."""
        if self._reached.done():
            return
        refusal = self._partition.refusal
        if self._partition.log.high_watermark >= self._end:
            self._reached.set_result(None)
        elif refusal is not None:
            self._reached.set_exception(refusal)
        else:
            try:
                self._partition.when_committed(self._end, self)
            except KafkaError as too_many:
                self._reached.set_exception(too_many)

    def within(self, timeout_ms: int) -> asyncio.Future[None]:
        """A future that raises REQUEST_TIMED_OUT after this time, or an error as soon as this broker stops leading."""
        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._time_out)
        self._reached.add_done_callback(lambda _: timer.cancel())
        return self._reached

    def _time_out(self) -> None:
        if not self._reached.done():
            text = f"{self._partition!r} has not committed the marker"
            self._reached.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, text))
