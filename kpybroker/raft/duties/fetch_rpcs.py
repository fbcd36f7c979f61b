"""Handles Fetch (KIP-595) and FetchSnapshot (KIP-630) on the leader of the metadata log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.raft.core import state as raft
from kpybroker.raft.core.divergence import Diverges, NeedsSnapshot, compare
from kpybroker.raft.core.state import Tail
from kpybroker.raft.driver import Driver
from kpybroker.raft.duties.applied_offsets import AppliedOffsets
from kpybroker.raft.duties.replica_progress import ReplicaProgress
from kpybroker.raft.duties.request_checks import check_cluster, check_leader, leader_endpoints, only_partition
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc import fetch, fetch_snapshot


class FetchRpcs:
    """Serves the replicas of the metadata log. A fetch that finds nothing new parks a callback, which is called when
    there may be something new."""

    def __init__(self, driver: Driver, progress: ReplicaProgress, applied: AppliedOffsets) -> None:
        self._driver = driver
        self._progress = progress
        self._applied = applied
        self._limit_bytes = driver.config.fetch_max_bytes
        self._parked: dict[Callable[[], None], None] = {}
        self._wake_is_due = False

    # ---- Fetch

    def row_for(self, request: fetch.Request) -> tuple[fetch.PartitionData, bool]:
        """Return the row of the response, without records. Also return whether records may be added to it, which is the
        case if the logs agree.

        Raises INCONSISTENT_CLUSTER_ID for the whole request.
        """
        driver = self._driver
        check_cluster(driver, request)
        wanted = request.topics[0].partitions[0]
        row = fetch.PartitionData(
            partition_index=wanted.partition,
            high_watermark=-1,
            log_start_offset=driver.log.start,
            current_leader=fetch.LeaderIdAndEpoch(leader_id=driver.leader_id, leader_epoch=driver.epoch),
            aborted_transactions=[],
            records=b"",
        )
        row.error_code = check_leader(driver, wanted.current_leader_epoch)
        if row.error_code:
            return row, False
        row.high_watermark = driver.state.told_high_watermark
        fetched = Tail(wanted.last_fetched_epoch, wanted.fetch_offset)
        outcome = compare(
            driver.log.epochs.entries, driver.log.start, driver.log.end, driver.metadata.snapshots.oldest, fetched
        )
        newest = driver.metadata.snapshots.newest
        if isinstance(outcome, NeedsSnapshot) and newest is not None:
            row.snapshot_id = fetch.SnapshotId(end_offset=newest.end, epoch=newest.epoch)
            return row, False
        if isinstance(outcome, Diverges):
            row.diverging_epoch = fetch.EpochEndOffset(epoch=outcome.epoch, end_offset=outcome.end)
            return row, False
        if isinstance(outcome, NeedsSnapshot):
            row.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return row, False
        return row, True

    def count(self, request: fetch.Request, replica_id: int) -> None:
        """Note the progress that a fetch reports, which may raise the high watermark. Call this once per request, if
        the logs agree."""
        wanted = request.topics[0].partitions[0]
        driver, key = self._driver, (replica_id, wanted.replica_directory_id)
        self._progress.fetched(key, wanted.fetch_offset)
        if driver.voters.counts(*key):
            driver.step(raft.ReplicaFetched(replica_id, wanted.fetch_offset))
        self._applied.note(replica_id, min(wanted.high_watermark, wanted.fetch_offset))

    def has_news(self, request: fetch.Request) -> bool:
        """Whether there are records for this fetch, or a higher high watermark than the replica knows (KIP-1166)."""
        wanted = request.topics[0].partitions[0]
        driver = self._driver
        has_records = wanted.fetch_offset < driver.log.written_end
        return bool(has_records or wanted.high_watermark < driver.state.told_high_watermark)

    def read(self, request: fetch.Request, row: fetch.PartitionData) -> bool:
        """Put records, or the error of the read, into a row that may have records. Returns False if the read would
        block."""
        wanted, storage = request.topics[0].partitions[0], self._driver.log
        size_bytes = self._size_bytes(request)
        try:
            found = storage.read(wanted.fetch_offset, size_bytes, upper=storage.end, min_one=True)
        except KafkaError as refusal:
            self._unreadable(row, refusal)
            return True
        if found is None:
            return False
        row.records = found if isinstance(found, bytes) else memoryview(found)
        return True

    async def read_cold(self, request: fetch.Request, row: fetch.PartitionData) -> None:
        """Like `read`, but on the thread of the disk."""
        wanted, storage = request.topics[0].partitions[0], self._driver.log
        size_bytes = self._size_bytes(request)
        try:
            found = await storage.read_cold(wanted.fetch_offset, size_bytes, upper=storage.end, min_one=True)
        except KafkaError as refusal:
            self._unreadable(row, refusal)
            return
        if check_leader(self._driver, wanted.current_leader_epoch):  # the log may have been truncated during the read
            row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return
        row.records = found if isinstance(found, bytes) else memoryview(found)

    def _size_bytes(self, request: fetch.Request) -> int:
        """The most bytes of a response. Replicas of Apache Kafka limit the whole response, and send 0 for the
        partition."""
        return min(
            request.topics[0].partitions[0].partition_max_bytes or request.max_bytes,
            request.max_bytes,
            self._limit_bytes,
        )

    def _unreadable(self, row: fetch.PartitionData, refusal: KafkaError) -> None:
        row.error_code = refusal.code
        if refusal.code is ErrorCode.KAFKA_STORAGE_ERROR:
            self._driver.fail(str(refusal))

    def node_endpoints(self) -> list[fetch.NodeEndpoint]:
        """The leader's address, for a replica that sent its request to another node."""
        return leader_endpoints(self._driver, fetch.NodeEndpoint)

    # ---- FetchSnapshot

    async def fetch_snapshot(self, request: fetch_snapshot.Request) -> fetch_snapshot.Response:
        """Return a piece of a snapshot. Raises KafkaError if it refuses the whole request."""
        driver = self._driver
        wanted = only_partition(driver, request)
        asked = Tail(wanted.snapshot_id.epoch, wanted.snapshot_id.end_offset)
        row = fetch_snapshot.PartitionSnapshotReply(
            snapshot_id=fetch_snapshot.SnapshotId(end_offset=asked.end, epoch=asked.epoch),
            current_leader=fetch_snapshot.LeaderIdAndEpoch(leader_id=driver.leader_id, leader_epoch=driver.epoch),
            unaligned_records=b"",
        )
        row.error_code = check_leader(driver, wanted.current_leader_epoch)
        if not row.error_code:
            if driver.voters.counts(request.replica_id, wanted.replica_directory_id):
                driver.step(raft.ReplicaFetched(request.replica_id, 0))  # not a report of progress
            try:
                limit_bytes = min(request.max_bytes, driver.config.controller_quorum_fetch_snapshot_max_bytes)
                row.size, found = await driver.metadata.snapshots.read(asked, wanted.position, limit_bytes)
                row.position, row.unaligned_records = wanted.position, found
                if not found:
                    row.error_code = ErrorCode.POSITION_OUT_OF_RANGE
            except (KeyError, OSError):
                row.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
        return fetch_snapshot.Response(
            topics=[fetch_snapshot.TopicSnapshotReply(name=METADATA_TOPIC, partitions=[row])],
            node_endpoints=leader_endpoints(driver, fetch_snapshot.NodeEndpoint),
        )

    # ---- parked fetches

    def park(self, look_again: Callable[[], None]) -> None:
        """Call `look_again` when there may be new records, a higher high watermark or another leader."""
        self._parked[look_again] = None

    def unpark(self, look_again: Callable[[], None]) -> None:
        """Remove a parked callback."""
        self._parked.pop(look_again, None)

    def wake_soon(self) -> None:
        """Call all parked callbacks once, at the end of this turn of the loop."""
        if self._parked and not self._wake_is_due:
            self._wake_is_due = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_is_due = False
        for look_again in list(self._parked):
            look_again()

    def role_changed(self, before: raft.State) -> None:
        """Forget the progress of the replicas, if this node was the leader."""
        if before.is_leader:
            self._progress.forget_all()
            self._applied.forget_all()
