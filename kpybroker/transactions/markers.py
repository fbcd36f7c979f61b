"""Sends the markers that end a transaction to the leaders of its partitions, until all leaders have written them.

Markers are sent only for transactions whose decision has committed, so that their outcome cannot change any more. There
is at most one such transaction for each transactional id, because the next transaction of an id waits for the end of
the previous one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import Any

from kpybroker.client.broker_connections import LOST, BrokerConnections
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.topics import TopicPartition
from kpybroker.transactions.transaction import Transaction
from kpybroker.wire.rpc import write_txn_markers

log = logging.getLogger(__name__)

PLACES_A_REQUEST = 1000
RETRY_S = 0.05
REQUEST_TIMEOUT_MS = 30_000
SETTLED = frozenset(
    {ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION},
)
"""Error codes after which the marker need not be sent to the partition again."""


class Job:
    """A decided transaction, and the partitions that still lack its marker."""

    __slots__ = ("coordinator_epoch", "done", "ending", "late", "left", "partition")

    def __init__(
        self, partition: int, coordinator_epoch: int, ending: Transaction, done: Callable[[Transaction], None]
    ) -> None:
        self.partition = partition
        self.coordinator_epoch = coordinator_epoch
        self.ending = ending
        self.done = done
        self.left = dict.fromkeys(sorted(ending.partitions))
        self.late: set[TopicPartition] = set()
        """Partitions that had a later epoch of the producer. Each is logged once."""

    def marker(self, places: list[TopicPartition]) -> write_txn_markers.WritableTxnMarker:
        """The marker for these partitions, as part of a request."""
        topics: dict[str, list[int]] = defaultdict(list)
        for topic, index in places:
            topics[topic].append(index)
        return write_txn_markers.WritableTxnMarker(
            producer_id=self.ending.producer_id,
            producer_epoch=self.ending.producer_epoch,
            transaction_result=self.ending.commits,
            topics=[
                write_txn_markers.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                for name, indexes in topics.items()
            ],
            coordinator_epoch=self.coordinator_epoch,
            transaction_version=self.ending.client_version,
        )


class Markers:
    """Sends markers: one request at a time to each broker, with all waiting markers.

    write_here: writes markers to the partitions that this broker leads.
    """

    def __init__(
        self,
        node_id: int,
        image: Callable[[], Image],
        connections: BrokerConnections,
        write_here: Callable[[Any], Awaitable[Any]],
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._connections = connections
        self._write_here = write_here
        self._jobs: dict[tuple[int, str], Job] = {}
        self._waiting: defaultdict[int, deque[tuple[Job, TopicPartition]]] = defaultdict(deque)
        """The markers to send, by the leader of the partition."""
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._later: list[tuple[Job, TopicPartition]] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def send(
        self, partition: int, coordinator_epoch: int, ending: Transaction, done: Callable[[Transaction], None]
    ) -> None:
        """Complete a decided transaction. `done` is called with it once, unless `forget` is called first.

        partition, coordinator_epoch: the partition of `__transaction_state`, and the leader epoch of the decision.
        """
        job = Job(partition, coordinator_epoch, ending, done)
        self._jobs[partition, ending.transactional_id] = job
        for place in list(job.left):
            self._route(job, place)
        self._look(job)

    def forget(self, partition: int) -> None:
        """Stop sending the markers of this partition of `__transaction_state`, because its new leader sends them."""
        for key in [key for key in self._jobs if key[0] == partition]:
            del self._jobs[key]

    def close(self) -> None:
        """Stop sending all markers, because the broker stops."""
        self._jobs.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._sending.values():
            task.cancel()

    def _is_current(self, job: Job) -> bool:
        return self._jobs.get((job.partition, job.ending.transactional_id)) is job

    def _look(self, job: Job) -> None:
        if not job.left and self._is_current(job):
            del self._jobs[job.partition, job.ending.transactional_id]
            job.done(job.ending)

    def _route(self, job: Job, place: TopicPartition) -> None:
        """Queue a partition for its leader. A deleted topic needs no marker."""
        topic, index = place
        known = self._image().topics.get(topic)
        if known is None or index >= len(known.partitions):
            job.left.pop(place, None)
            return
        leader = known.partitions[index].leader
        if leader < 0:
            self._put_off([(job, place)])
            return
        self._waiting[leader].append((job, place))
        if leader not in self._sending:
            self._sending[leader] = asyncio.get_running_loop().create_task(self._send_all(leader))

    def _put_off(self, missing: list[tuple[Job, TopicPartition]]) -> None:
        self._later += missing
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._again)

    def _again(self) -> None:
        self._timer = None
        missing, self._later = self._later, []
        for job, place in missing:
            if self._is_current(job):
                self._route(job, place)
                self._look(job)

    async def _send_all(self, node_id: int) -> None:
        """Send all markers that wait for a broker, including those that are added during this time."""
        waiting = self._waiting[node_id]
        try:
            while waiting:
                count = min(len(waiting), PLACES_A_REQUEST)
                taken = [each for each in (waiting.popleft() for _ in range(count)) if self._is_current(each[0])]
                if taken:
                    await self._send(node_id, taken)
        finally:
            del self._sending[node_id]

    async def _send(self, node_id: int, taken: list[tuple[Job, TopicPartition]]) -> None:
        places: dict[Job, list[TopicPartition]] = defaultdict(list)
        for job, place in taken:
            places[job].append(place)
        request = write_txn_markers.Request(markers=[job.marker(found) for job, found in places.items()])
        try:
            if node_id == self._node_id:
                told = await self._write_here(request)
            else:
                told = await self._connections.ask(node_id, "WriteTxnMarkers", request, REQUEST_TIMEOUT_MS)
        except (*LOST, KafkaError) as lost:
            log.debug("markers for broker %d: %s", node_id, lost)
            self._put_off(taken)
            return
        results = {
            (marker.producer_id, topic.name, each.partition_index): each.error_code
            for marker in told.markers
            for topic in marker.topics
            for each in topic.partitions
        }
        for job, found in places.items():
            for place in found:
                self._take(job, place, results.get((job.ending.producer_id, *place), ErrorCode.UNKNOWN_SERVER_ERROR))
            self._look(job)

    def _take(self, job: Job, place: TopicPartition, code: int) -> None:
        if code in SETTLED:
            job.left.pop(place, None)
        elif code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            log.info("%s: another coordinator ends its transaction", job.ending.transactional_id)
            if self._is_current(job):
                del self._jobs[job.partition, job.ending.transactional_id]
        else:
            if code == ErrorCode.INVALID_PRODUCER_EPOCH and place not in job.late:
                job.late.add(place)
                log.warning("%s-%d has a later epoch than the marker of %r", *place, job.ending.transactional_id)
            self._put_off([(job, place)])
