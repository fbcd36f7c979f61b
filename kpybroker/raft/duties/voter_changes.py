"""Changes the voters on the leader: AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter, and kraft.version (KIP-853).

Each change is one record in the log, which takes effect as soon as it is appended. The leader makes one change at a
time, and only when the last change and a record of its own epoch have committed. The errors and the order of the checks
are the same as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from kpybroker.config.quorum import VOTERS_MAX
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.raft.core import state as raft
from kpybroker.raft.core.voter_set import KRAFT_VERSIONS, NO_DIRECTORY, Endpoint, Voter, VoterSet
from kpybroker.raft.driver import Driver
from kpybroker.raft.duties.replica_progress import ReplicaProgress
from kpybroker.raft.duties.request_checks import check_cluster, check_leader
from kpybroker.raft.duties.voter_rpcs import LOST
from kpybroker.raft.log.voters import voter_rows
from kpybroker.wire.rpc import add_raft_voter, api_versions, remove_raft_voter, update_raft_voter

log = logging.getLogger(__name__)

KRAFT = "kraft.version"


class VoterSetChanges:
    """Makes the changes of voters that clients and nodes request."""

    def __init__(self, driver: Driver, progress: ReplicaProgress) -> None:
        self._driver = driver
        self._progress = progress
        self._timeout_s = driver.config.controller_quorum_request_timeout_ms / 1000
        self._is_busy = False
        self._waiting: tuple[int, asyncio.Future[None]] | None = None
        """The end offset of the change in progress, and the future of the request that waits for its commit."""
        self._described: dict[int, Voter] = {}
        """At kraft.version 0: the voters, as their UpdateRaftVoter requests of this epoch described them."""

    # ---- requests

    async def add(self, request: add_raft_voter.Request) -> add_raft_voter.Response:
        """Turn an observer that has caught up into a voter. Raises KafkaError."""
        self._check_asked(request)
        endpoints = _endpoints(request)
        voter = Voter(request.voter_id, request.voter_directory_id, endpoints)
        where = voter.listens(self._names)
        if voter.node_id < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the request does not name a voter")
        if where is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the new voter has no listener {self._names[0]}")
        self._check_ready("adding")
        voters = self._driver.voters.set
        if voters.get(voter.node_id) is not None:
            raise KafkaError(ErrorCode.DUPLICATE_VOTER, f"{voter.node_id} is already a voter; the voters are {voters}")
        if len(voters.voters) >= VOTERS_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a quorum may have at most {VOTERS_MAX} voters")
        epoch, self._is_busy = self._driver.epoch, True
        try:
            # a handler's first step runs outside a task, and asyncio.timeout needs one
            asked = self._versions_of(voter, where)
            versions = await asyncio.get_running_loop().create_task(asked)
            self._check_still(epoch)
            if not self._progress.is_caught_up(*voter.key):
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{voter} lags behind, or has not fetched from this leader: it must run as an observer first",
                )
            end = self._append(voters.with_voter(voter._replace(versions=versions)))
            if request.ack_when_committed:
                await self._until_committed(end)
        finally:
            self._is_busy = False
        return add_raft_voter.Response(error_message=None)

    async def remove(self, request: remove_raft_voter.Request) -> remove_raft_voter.Response:
        """Turn a voter into an observer. If the voter is this leader, it resigns after the commit. Raises
        KafkaError."""
        self._check_asked(request)
        if request.voter_id < 0 or request.voter_directory_id == NO_DIRECTORY:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the request does not name a voter by its id and directory id")
        self._check_ready("removing")
        voters = self._driver.voters.set
        if not voters.has(request.voter_id, request.voter_directory_id) or len(voters.voters) == 1:
            gone = Voter(request.voter_id, request.voter_directory_id)
            raise KafkaError(ErrorCode.VOTER_NOT_FOUND, f"{gone} cannot be removed: the voters are {voters}")
        self._is_busy = True
        try:
            await self._until_committed(self._append(voters.without(request.voter_id)))
        finally:
            self._is_busy = False
        return remove_raft_voter.Response(error_message=None)

    def update(self, request: update_raft_voter.Request) -> update_raft_voter.Response:
        """Note a voter's address and supported versions. The response contains the leader, even if it has an error
        code."""
        error = ErrorCode.NONE
        try:
            self._update(request)
        except KafkaError as refusal:
            error = refusal.code
        driver = self._driver
        address = driver.addresses.of(driver.leader_id)
        leader = update_raft_voter.CurrentLeader(leader_id=driver.leader_id, leader_epoch=driver.epoch)
        if address is not None:
            leader.host, leader.port = address
        return update_raft_voter.Response(error_code=error, current_leader=leader)

    def _update(self, request: update_raft_voter.Request) -> None:
        driver = self._driver
        self._check_asked(request, request.current_leader_epoch)
        endpoints = _endpoints(request)
        known = request.kraft_version_feature
        versions = known.min_supported_version, known.max_supported_version
        voter = Voter(request.voter_id, request.voter_directory_id, endpoints, versions)
        if voter.node_id < 0 or voter.listens(self._names) is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if not 0 <= versions[0] <= driver.kraft_version <= versions[1]:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if not driver.kraft_version:
            if voter.node_id not in driver.voters.ids:
                raise KafkaError(ErrorCode.VOTER_NOT_FOUND)
            self._described[voter.node_id] = voter
            return
        self._check_ready("updating")
        if not driver.voters.counts(*voter.key):
            raise KafkaError(ErrorCode.VOTER_NOT_FOUND)
        if voter not in driver.voters.set.voters:
            self._append(driver.voters.set.with_voter(voter))

    def check_upgrade(self, level: int, *, is_upgrade: bool) -> None:
        """Raises INVALID_UPDATE_VERSION if the quorum cannot use this kraft.version, or NOT_CONTROLLER."""
        driver = self._driver
        low, high = KRAFT_VERSIONS
        if not driver.is_leader:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        if not low <= level <= high:
            raise _no_such_level(level, f"the controllers support versions {low} to {high}.")
        if level < driver.kraft_version:
            raise _no_such_level(level, "the quorum cannot be downgraded, since its log contains the voters.")
        if level > driver.kraft_version:
            if not is_upgrade:
                raise _no_such_level(level, "a higher version cannot be a downgrade.")
            self._voters_at(level)

    def _voters_at(self, level: int) -> VoterSet:
        """The voters as described by their own requests. Raises INVALID_UPDATE_VERSION if a voter has sent none, or
        does not support the level."""
        self._described[self._driver.identity.node_id] = self._driver.identity.voter
        voters = VoterSet.of(self._described.get(node_id, Voter(node_id)) for node_id in self._driver.voters.ids)
        silent = [voter.node_id for voter in voters.voters if voter.directory_id == NO_DIRECTORY]
        if silent:
            raise _no_such_level(level, f"voters {silent} have not yet reported the versions that they support.")
        unable = [voter.node_id for voter in voters.voters if not voter.versions[0] <= level <= voter.versions[1]]
        if unable:
            raise _no_such_level(level, f"voters {unable} do not support it.")
        return voters

    async def upgrade(self, level: int) -> None:
        """Finalize a level of kraft.version. From level 1 on, the log contains the voters.

        Raises the errors of `check_upgrade`, and REQUEST_TIMED_OUT.
        """
        driver = self._driver
        self.check_upgrade(level, is_upgrade=True)
        if level == driver.kraft_version:
            return
        if self._is_busy or not driver.state.may_change_voters:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "another change of the quorum is in progress")
        self._is_busy = True
        try:
            await self._until_committed(self._append(self._voters_at(level), level))
        finally:
            self._is_busy = False

    # ---- checks

    @property
    def _names(self) -> tuple[str, ...]:
        return self._driver.config.controller_listener_names[:1]

    def _check_asked(self, request: Any, epoch: int | None = None) -> None:
        check_cluster(self._driver, request)
        error = check_leader(self._driver, self._driver.epoch if epoch is None else epoch)
        if error:
            raise KafkaError(error, "this node does not lead the metadata quorum in that epoch")

    def _check_still(self, epoch: int) -> None:
        if not self._driver.is_leader or self._driver.epoch != epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node no longer leads the metadata quorum")

    def _check_ready(self, what: str) -> None:
        driver = self._driver
        if self._is_busy:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is in progress")
        if driver.state.told_high_watermark < 0:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the leader has not yet committed a record of its epoch")
        if not driver.kraft_version:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{what} a voter requires {KRAFT} 1, but the cluster has 0: run "
                f"kafka-features upgrade --feature {KRAFT}=1",
            )
        if not driver.state.may_change_voters:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the last change of the voters, up to offset {driver.state.voters_end}, is not committed yet",
            )

    async def _versions_of(self, voter: Voter, where: tuple[str, int]) -> tuple[int, int]:
        """Query a new voter for the range of kraft.version that it supports. Raises KafkaError."""
        level, peer = self._driver.kraft_version, None
        try:
            async with asyncio.timeout(self._timeout_s):
                peer = await self._driver.dialer.dial(*where, client_id=self._driver.identity.client_id)
                told = await peer.ask("ApiVersions", _api_versions_request(), version=4)
        except LOST as reason:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{voter} does not respond at {where}: {reason}") from None
        finally:
            if peer is not None:
                peer.close()
        known = {row.name: (row.min_version, row.max_version) for row in told.supported_features}.get(KRAFT)
        if told.error_code or known is None or not known[0] <= level <= known[1]:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{voter} supports {KRAFT} {known}, but not {level}")
        return known

    # ---- the change

    def _append(self, voters: VoterSet, kraft_version: int | None = None) -> int:
        """Append the new voters, which take effect at once, and return the end of the log."""
        driver = self._driver
        rows = voter_rows(driver.kraft_version if kraft_version is None else kraft_version, voters)
        log.info("voters of the metadata quorum from offset %d on: %s", driver.log.end, voters)
        return driver.append(rows if kraft_version is not None else rows[1:], [], control=True)

    async def _until_committed(self, end: int) -> None:
        """Wait for the commit. Raises REQUEST_TIMED_OUT, in which case the change may still commit, or
        NOT_LEADER_OR_FOLLOWER, in which case the next leader decides."""
        if self._driver.state.high_watermark >= end:
            return
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting = end, waiting
        late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the change has been written but not committed yet")
        timer = loop.call_later(self._timeout_s, lambda: None if waiting.done() else waiting.set_exception(late))
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting = None

    def committed(self, end: int) -> None:
        """Complete the request that waits for the high watermark to reach `end`."""
        if self._waiting is not None and self._waiting[0] <= end and not self._waiting[1].done():
            self._waiting[1].set_result(None)

    def role_changed(self, before: raft.State) -> None:
        """Refuse the change in progress, if this node was the leader: the next leader decides on it."""
        if not before.is_leader:
            return
        self._described.clear()
        if self._waiting is not None and not self._waiting[1].done():
            why = "another node leads the metadata quorum now and will decide on the change"
            self._waiting[1].set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, why))


def _api_versions_request() -> Any:
    return api_versions.Request(client_software_name="kpybroker", client_software_version="1")


def _endpoints(request: Any) -> tuple[Endpoint, ...]:
    return tuple((listener.name, listener.host, listener.port) for listener in request.listeners)


def _no_such_level(level: int, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {KRAFT}: {why}")
