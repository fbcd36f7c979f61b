"""What a node of the quorum answers to the others: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot
(KIP-595, KIP-630). Handlers give the request and send what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.raft.core import state as raft
from kpybroker.raft.core.divergence import Diverges, NeedsSnapshot, compare
from kpybroker.raft.core.state import Tail
from kpybroker.raft.core.voter_set import NO_DIRECTORY
from kpybroker.raft.driver import Driver
from kpybroker.raft.duties.applied_offsets import Followed
from kpybroker.raft.duties.bootstrap import Founding
from kpybroker.raft.duties.replica_progress import Standing
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc import begin_quorum_epoch, end_quorum_epoch, fetch, fetch_snapshot, vote

if TYPE_CHECKING:
    from kpybroker.world import World

EPOCHS_AHEAD_MAX = 1_000_000
EPOCHS_BY_ONE = 2**30
"""From here on, where no cluster comes by elections, a request is at most one epoch ahead: few steps lead here, and
then so many to the last one that nobody takes them."""


class Answering:
    """The side of the quorum that is asked."""

    def __init__(self, world: World, driver: Driver, founding: Founding) -> None:
        self._driver = driver
        self._founding = founding
        self._limit_bytes = driver.config.fetch_max_bytes
        self._parked: dict[Callable[[], None], None] = {}
        self._wake_is_due = False
        self.standing = Standing(world, driver)
        self.followed = Followed()

    # ---- elections

    def vote_asked(self, request: vote.Request) -> vote.Response:
        """Grant or refuse; what is granted is on disk when this returns. Raises KafkaError for the whole request."""
        asked = self._the_partition(request)
        driver = self._driver
        if not self._is_for_me(request.voter_id, asked.voter_directory_id):
            return self._voted(granted=False, error=ErrorCode.INVALID_VOTER_KEY)
        newest_epoch = asked.replica_epoch - (0 if asked.pre_vote else 1)  # a candidate's own has no records yet
        if not 0 <= asked.last_offset_epoch <= newest_epoch or asked.last_offset < 0 or self._is_absurd(newest_epoch):
            return self._voted(granted=False, error=ErrorCode.INVALID_REQUEST)
        if asked.replica_epoch < driver.epoch:
            return self._voted(granted=False, error=ErrorCode.FENCED_LEADER_EPOCH)
        known = driver.state.voters
        if not driver.kraft_version and not {driver.identity.node_id, asked.replica_id} <= set(known):
            return self._voted(granted=False)  # where voters change, a log that lacks a change may still be needed
        tail = Tail(asked.last_offset_epoch, asked.last_offset)
        directory = b"" if asked.replica_directory_id == NO_DIRECTORY else asked.replica_directory_id
        granted = driver.step(raft.VoteAsked(asked.replica_id, asked.replica_epoch, tail, asked.pre_vote, directory))
        if not granted and not driver.state.may_elect(tail):
            driver.newcomer.refused(asked.replica_id)
        return self._voted(granted=bool(granted))

    def _is_for_me(self, node_id: int, directory_id: bytes) -> bool:
        """Whether a request is for this node, and for the directory that it has; older ones do not say."""
        me = self._driver.identity
        if directory_id not in (NO_DIRECTORY, me.directory_id):
            self._founding.doubt()
            return False
        return node_id in (-1, me.node_id)

    def _is_absurd(self, epoch: int) -> bool:
        """Refuse an epoch that is impossibly far ahead: epochs count elections, and a forged one would use them up."""
        ahead = epoch - self._driver.epoch
        return ahead > (EPOCHS_AHEAD_MAX if epoch < EPOCHS_BY_ONE else 1)

    def _voted(self, *, granted: bool, error: ErrorCode = ErrorCode.NONE) -> vote.Response:
        row = vote.PartitionDataReply(
            error_code=error, leader_id=self._driver.leader_id, leader_epoch=self._driver.epoch, vote_granted=granted
        )
        return vote.Response(
            topics=[vote.TopicDataReply(topic_name=METADATA_TOPIC, partitions=[row])],
            node_endpoints=self._endpoints(vote.NodeEndpoint),
        )

    def epoch_begun(self, request: begin_quorum_epoch.Request) -> begin_quorum_epoch.Response:
        """A leader tells of itself. Raises KafkaError for the whole request."""
        told = self._the_partition(request)
        if not self._is_for_me(request.voter_id, told.voter_directory_id):
            refused: begin_quorum_epoch.Response = self._acknowledged(begin_quorum_epoch, ErrorCode.INVALID_VOTER_KEY)
            return refused
        error = self._check_told(told)
        if not error:
            self._learn(request, told.leader_id)
            self._driver.step(raft.BeginAsked(told.leader_id, told.leader_epoch))
        answer: begin_quorum_epoch.Response = self._acknowledged(begin_quorum_epoch, error)
        return answer

    def epoch_ended(self, request: end_quorum_epoch.Request) -> end_quorum_epoch.Response:
        """A leader resigns. Raises KafkaError for the whole request."""
        told = self._the_partition(request)
        error = self._check_told(told)
        if not error:
            self._learn(request, told.leader_id)
            named = [candidate.candidate_id for candidate in told.preferred_candidates]
            successors = tuple(named or told.preferred_successors)
            self._driver.step(raft.EndAsked(told.leader_id, told.leader_epoch, successors))
        answer: end_quorum_epoch.Response = self._acknowledged(end_quorum_epoch, error)
        return answer

    def _check_told(self, told: Any) -> ErrorCode:
        state = self._driver.state
        if told.leader_epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if self._is_absurd(told.leader_epoch):
            return ErrorCode.INVALID_REQUEST
        if not self._driver.kraft_version and told.leader_id not in state.voters:
            return ErrorCode.INCONSISTENT_VOTER_SET
        known = self._driver.leader_id
        if told.leader_epoch == state.epoch and known not in (raft.NOBODY, told.leader_id):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _learn(self, request: Any, leader_id: int) -> None:
        wanted = self._driver.config.controller_listener_names
        for endpoint in request.leader_endpoints:
            if endpoint.name in wanted:
                self._driver.addresses.learn([(leader_id, endpoint.host, endpoint.port)])

    def _acknowledged(self, messages: Any, error: ErrorCode) -> Any:
        row = messages.PartitionDataReply(
            error_code=error, leader_id=self._driver.leader_id, leader_epoch=self._driver.epoch
        )
        return messages.Response(
            topics=[messages.TopicDataReply(topic_name=METADATA_TOPIC, partitions=[row])],
            node_endpoints=self._endpoints(messages.NodeEndpoint),
        )

    # ---- replication

    def row_for(self, request: fetch.Request) -> tuple[fetch.PartitionData, bool]:
        """The row of the metadata log without its records, and whether it may have some: the logs agree.

        Raises INCONSISTENT_CLUSTER_ID for the whole request.
        """
        self.check_cluster(request)
        wanted = request.topics[0].partitions[0]
        driver = self._driver
        row = fetch.PartitionData(
            partition_index=wanted.partition,
            high_watermark=-1,
            log_start_offset=-1,
            current_leader=fetch.LeaderIdAndEpoch(leader_id=driver.leader_id, leader_epoch=driver.epoch),
            aborted_transactions=None,
            records=b"",
        )
        row.error_code = self.check_leader(wanted.current_leader_epoch)
        if row.error_code:
            return row, False
        row.high_watermark = row.last_stable_offset = driver.state.high_watermark
        row.log_start_offset = driver.log.start
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
        """Count what a fetch that agrees says of its replica; the high watermark may rise. Once for each request."""
        wanted = request.topics[0].partitions[0]
        driver, key = self._driver, (replica_id, wanted.replica_directory_id)
        self.standing.fetched(key, wanted.fetch_offset)
        if driver.voters.counts(*key):
            driver.step(raft.Fetched(replica_id, wanted.fetch_offset))
        self.followed.note(replica_id, min(wanted.high_watermark, wanted.fetch_offset))

    def is_news(self, request: fetch.Request) -> bool:
        """There are records for this fetch, or a higher high watermark than it knows (KIP-1166)."""
        wanted = request.topics[0].partitions[0]
        driver = self._driver
        return bool(wanted.fetch_offset < driver.log.written_end or wanted.high_watermark < driver.state.high_watermark)

    def read(self, request: fetch.Request, row: fetch.PartitionData) -> bool:
        """Put records, or why there are none, into a row that may have some; False where that would take a while."""
        wanted, storage = request.topics[0].partitions[0], self._driver.log
        size_bytes = min(wanted.partition_max_bytes, request.max_bytes, self._limit_bytes)
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
        """The same, off the loop."""
        wanted, storage = request.topics[0].partitions[0], self._driver.log
        size_bytes = min(wanted.partition_max_bytes, request.max_bytes, self._limit_bytes)
        try:
            found = await storage.read_cold(wanted.fetch_offset, size_bytes, upper=storage.end, min_one=True)
        except KafkaError as refusal:
            self._unreadable(row, refusal)
            return
        if self.check_leader(wanted.current_leader_epoch):  # the log may have been cut meanwhile
            row.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return
        row.records = found if isinstance(found, bytes) else memoryview(found)

    def _unreadable(self, row: fetch.PartitionData, refusal: KafkaError) -> None:
        row.error_code = refusal.code
        if refusal.code is ErrorCode.KAFKA_STORAGE_ERROR:
            self._driver.fail(str(refusal))

    async def snapshot_piece(self, request: fetch_snapshot.Request) -> fetch_snapshot.Response:
        """A piece of a snapshot. Raises KafkaError for the whole request."""
        wanted = self._the_partition(request)
        driver = self._driver
        asked = Tail(wanted.snapshot_id.epoch, wanted.snapshot_id.end_offset)
        row = fetch_snapshot.PartitionSnapshotReply(
            snapshot_id=fetch_snapshot.SnapshotId(end_offset=asked.end, epoch=asked.epoch),
            current_leader=fetch_snapshot.LeaderIdAndEpoch(leader_id=driver.leader_id, leader_epoch=driver.epoch),
            unaligned_records=b"",
        )
        row.error_code = self.check_leader(wanted.current_leader_epoch)
        if not row.error_code:
            if driver.voters.counts(request.replica_id, wanted.replica_directory_id):
                driver.step(raft.Fetched(request.replica_id, 0))  # it is there, and has nothing new to say
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
            node_endpoints=self._endpoints(fetch_snapshot.NodeEndpoint),
        )

    def park(self, look_again: Callable[[], None]) -> None:
        """Call when there may be news for a fetch: records, a higher high watermark, another leader."""
        self._parked[look_again] = None

    def unpark(self, look_again: Callable[[], None]) -> None:
        """It does not wait any more."""
        self._parked.pop(look_again, None)

    def wake_soon(self) -> None:
        """Let everybody who waits look again, once for all that happens in this turn of the loop."""
        if self._parked and not self._wake_is_due:
            self._wake_is_due = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_is_due = False
        for look_again in list(self._parked):
            look_again()

    def reign_ended(self) -> None:
        """What was known of replicas was known by a leader."""
        self.standing.forget_all()
        self.followed.forget_all()

    # ---- what all of them check

    def check_cluster(self, request: Any) -> None:
        """Raises INCONSISTENT_CLUSTER_ID."""
        if request.cluster_id is not None and request.cluster_id != self._driver.identity.cluster_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"this node is of cluster {self._driver.identity.cluster_id}, not of {request.cluster_id}",
            )

    def _the_partition(self, request: Any) -> Any:
        """What is asked of the one partition there is. Raises INCONSISTENT_CLUSTER_ID, INVALID_REQUEST."""
        self.check_cluster(request)
        rows = [
            (topic.name if hasattr(topic, "name") else topic.topic_name, partition)
            for topic in request.topics
            for partition in topic.partitions
        ]
        if len(rows) != 1 or rows[0][0] != METADATA_TOPIC:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{METADATA_TOPIC}-0 alone is kept by the quorum")
        return rows[0][1]

    def check_leader(self, epoch: int) -> ErrorCode:
        """What is wrong with a request to the leader of an epoch."""
        state = self._driver.state
        if epoch < state.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > state.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if state.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _endpoints(self, kind: Any) -> list[Any]:
        address = self._driver.addresses.of(self._driver.leader_id)
        if address is None:
            return []
        return [kind(node_id=self._driver.leader_id, host=address.host, port=address.port)]

    def fetch_endpoints(self) -> list[fetch.NodeEndpoint]:
        """The leader's address, for a request that reached another node."""
        return self._endpoints(fetch.NodeEndpoint)
