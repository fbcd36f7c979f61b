"""The metadata quorum: creates the driver and the other parts of `raft`, and is their interface to the broker.

A record is committed when a majority of the voters has it on disk. Committed records are applied to the Image;
`on_image` is called before `on_committed`, so that the controller sends no response before the Image has its changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError, Damage, ErrorCode, KafkaError
from kpybroker.machine.contract import Stored
from kpybroker.metadata.chronicle import CHRONICLE
from kpybroker.metadata.image import Image
from kpybroker.raft.addresses import ControllerNode
from kpybroker.raft.core import state as raft
from kpybroker.raft.core.voter_set import Endpoint, VoterSet
from kpybroker.raft.driver import Driver
from kpybroker.raft.duties.applied_offsets import AppliedOffsets
from kpybroker.raft.duties.bootstrap import BootstrapCheck
from kpybroker.raft.duties.election_rpcs import ElectionRpcs
from kpybroker.raft.duties.fetch_rpcs import FetchRpcs
from kpybroker.raft.duties.fetching import MetadataFetcher
from kpybroker.raft.duties.leader_duties import LeaderDuties
from kpybroker.raft.duties.metadata_disk import MetadataDisk
from kpybroker.raft.duties.readiness import Readiness
from kpybroker.raft.duties.replica_progress import ReplicaProgress
from kpybroker.raft.duties.self_registration import SelfRegistration
from kpybroker.raft.duties.voter_changes import VoterSetChanges
from kpybroker.raft.duties.voter_rpcs import VoterRpcs
from kpybroker.raft.log.loading import first_state, way_out
from kpybroker.raft.log.metadata_log import pieces
from kpybroker.raft.log.quorum_state import read_quorum_state
from kpybroker.raft.log.voters import LoggedVoters
from kpybroker.storage.dirs.directory import Directory
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.snapshot import Row
from kpybroker.wire.rpc import (
    add_raft_voter,
    begin_quorum_epoch,
    describe_quorum,
    end_quorum_epoch,
    fetch_snapshot,
    remove_raft_voter,
    update_raft_voter,
    vote,
)
from kpybroker.wire.stored.metadata import frame_record
from kpybroker.world import World

log = logging.getLogger(__name__)
chronicle = logging.getLogger(CHRONICLE)

FAREWELL_S = 0.5
"""The time for which a leader that stops waits for the responses of the voters."""


class Quorum:
    """This node's part in the quorum, and a StateLog for the controller. Call `start`, then `run`, and `close` at the
    end."""

    def __init__(self, world: World, config: BrokerConfig, directory: Directory) -> None:
        self._world = world
        self._config = config
        self.driver = driver = Driver(world, config, directory)
        self._on_committed: list[Callable[[], None]] = []
        self._on_leadership: list[Callable[[], None]] = []
        self._was_active = False
        self._voter_rpcs = VoterRpcs(driver)
        self._readiness = Readiness(driver, self._voter_rpcs)
        self._bootstrap = BootstrapCheck(world, driver)
        self._elections = ElectionRpcs(driver, self._bootstrap)
        self._progress = ReplicaProgress(world, driver)
        self._applied_offsets = AppliedOffsets()
        self.fetches = FetchRpcs(driver, self._progress, self._applied_offsets)
        self._leader = LeaderDuties(world, driver, directory.path)
        self._changes = VoterSetChanges(driver, self._progress)
        self._fetcher = MetadataFetcher(world, driver, self._readiness)
        self._registration = SelfRegistration(driver, self._readiness)
        self._disk = MetadataDisk(world, driver)
        self._subscribe()

    def _subscribe(self) -> None:
        """Subscribe all parts to the events of the driver. The order matters."""
        driver = self.driver
        driver.vetoes.append(self._disk.forbids)
        driver.elected.append(self._leader.elected)
        driver.questions.append(self._voter_rpcs.ask)
        driver.voters_changed.extend((self._fetcher.look_again, self._registration.look_again))
        driver.committed.append(self._changes.committed)
        driver.news.append(self.fetches.wake_soon)
        driver.applied.extend((self._leader.applied, self._applied, self._readiness.look_again))
        driver.role_changed.extend((self._leader.role_changed, self.fetches.role_changed, self._changes.role_changed))
        driver.role_changed.append(self._role_changed)

    # ---- start and stop

    async def start(self) -> None:
        """Open the log. A sole voter replays the log, becomes the leader, and commits the records in the log, or the
        first records of a new log. Any other node replays only the snapshot; after `run`, it learns which later records
        have committed. Raises ConfigError if the log cannot be read, has a newer version, or has different voters.
        """
        driver = self.driver
        try:
            await driver.metadata.open()
            voted, static = read_quorum_state(self._world, driver.path)
            driver.voters.check(driver.path)
            driver.voters.check_static(static, driver.path)
            driver.addresses.learn_voters(self.voters.voters)
            is_new = driver.new_voter.is_new
            driver.begin(first_state(self._config, driver.voters, voted, self.image, self.log, is_new=is_new))
            if driver.voters.are_alone:
                driver.step(raft.Start())
                await self.settle()
        except (Damage, OSError, KafkaError) as reason:
            raise ConfigError(
                f"the metadata log in {driver.path} cannot be used: {reason}; {way_out(reason)}"
            ) from reason

    def run(self) -> None:
        """Begin to take part in the quorum. From now on, other nodes can connect to this one."""
        self._disk.start()
        self._fetcher.start()
        self._registration.start()
        if not self.state.is_leader:
            self.driver.take(raft.Start())

    async def settle(self) -> None:
        """Wait until all appended records are on disk. On a sole voter, this means that they have committed. Raises
        Damage."""
        await self.driver.metadata.settle()

    async def resign(self) -> None:
        """Resign, if this node leads and there are other voters. The node continues to respond to requests."""
        if self.state.is_leader and self.state.others:
            self.driver.take(raft.Resign())
            try:
                async with asyncio.timeout(FAREWELL_S):
                    await self._voter_rpcs.finish()
            except TimeoutError:
                log.info("this node stops before all voters have responded to its resignation")

    async def close(self) -> None:
        """Sync all written records, and close the files. A damaged log is closed without a sync."""
        self.driver.stop()
        self._disk.stop()
        await self._bootstrap.close()
        await self._registration.close()
        await self._fetcher.close()
        await self._voter_rpcs.close()
        await self.driver.metadata.close()
        self.driver.end()

    # ---- leader and voters

    @property
    def state(self) -> raft.State:
        """The Raft state of this node."""
        return self.driver.state

    @property
    def epoch(self) -> int:
        return self.state.voted.epoch

    @property
    def leader_id(self) -> int:
        """The leader of this epoch, as far as this node knows; -1 if there is none."""
        return self.state.leader_id

    @property
    def is_leader(self) -> bool:
        """Whether this node leads: it appends records, and other nodes fetch them. The controller waits for
        `is_active`."""
        return self.state.is_leader

    @property
    def is_active(self) -> bool:
        """Whether this node leads and its Image has every record from before its epoch, so that its controller may
        decide."""
        return self._leader.is_active

    @property
    def active_controller(self) -> ControllerNode | None:
        """The active controller, to which requests are sent; None if there is no leader or its address is not known.

        If it is this node, use `broker.controller`, which refuses commands with NOT_CONTROLLER until it is active.
        """
        address = self.driver.addresses.of(self.leader_id)
        return None if address is None else ControllerNode(self.leader_id, *address)

    @property
    def no_leader_reason(self) -> str | None:
        """The reason why no leader can be elected; None if this node does not know it."""
        return self._voter_rpcs.no_leader_reason

    @property
    def lacks_majority(self) -> bool:
        """Whether this node looks for a leader while too many voters do not respond for one to be elected."""
        return (self.state.asks_for_votes or self._fetcher.looks_for_a_leader) and self._voter_rpcs.lacks_majority

    @property
    def voters(self) -> VoterSet:
        """The latest voters in the log, committed or not; empty for an observer that does not know them yet."""
        return self.driver.voters.set

    @property
    def voter_history(self) -> tuple[LoggedVoters, ...]:
        """The voters that a truncation may restore, with their offsets, followed by the latest voters."""
        return self.driver.voters.history

    def voter_endpoints(self) -> list[tuple[int, list[Endpoint]]]:
        """The listeners of each voter, by node id."""
        return [(voter.node_id, self._progress.endpoints(voter)) for voter in self.voters.voters]

    def on_leadership(self, callback: Callable[[], None]) -> None:
        """Add a callback for every change of `leader_id`, `epoch` or `is_active`. It is never called inside a step of a
        Machine."""
        self._on_leadership.append(callback)

    # ---- requests of other nodes and of clients

    def answer_vote(self, request: vote.Request) -> vote.Response:
        """Grant or refuse a vote. A granted vote is on disk when this returns. Raises KafkaError."""
        return self._elections.answer_vote(request)

    def begin_epoch(self, request: begin_quorum_epoch.Request) -> begin_quorum_epoch.Response:
        """Follow the leader that sent this request, unless this node knows a later leader. Raises KafkaError."""
        return self._elections.begin_epoch(request)

    def end_epoch(self, request: end_quorum_epoch.Request) -> end_quorum_epoch.Response:
        """Start an election, because the leader that sent this request has resigned. Raises KafkaError."""
        return self._elections.end_epoch(request)

    async def fetch_snapshot(self, request: fetch_snapshot.Request) -> fetch_snapshot.Response:
        """Return a piece of a snapshot. Raises KafkaError."""
        return await self.fetches.fetch_snapshot(request)

    def describe(self) -> describe_quorum.Response:
        """Return the leader, and the progress of all replicas. Raises NOT_LEADER_OR_FOLLOWER."""
        return self._progress.describe()

    async def add_voter(self, request: add_raft_voter.Request) -> add_raft_voter.Response:
        """Turn an observer that has caught up into a voter. Raises KafkaError."""
        return await self._changes.add(request)

    async def remove_voter(self, request: remove_raft_voter.Request) -> remove_raft_voter.Response:
        """Turn a voter into an observer. Raises KafkaError."""
        return await self._changes.remove(request)

    def update_voter(self, request: update_raft_voter.Request) -> update_raft_voter.Response:
        """Note a voter's address and supported versions. The response contains the error, if there is one."""
        return self._changes.update(request)

    def check_kraft_version(self, level: int, *, is_upgrade: bool) -> None:
        """Raises INVALID_UPDATE_VERSION if the quorum cannot use this kraft.version, or NOT_CONTROLLER."""
        self._changes.check_upgrade(level, is_upgrade=is_upgrade)

    async def set_kraft_version(self, level: int) -> None:
        """Finalize a level of kraft.version. Raises INVALID_UPDATE_VERSION, NOT_CONTROLLER, REQUEST_TIMED_OUT."""
        await self._changes.upgrade(level)

    # ---- applied offsets

    @property
    def is_current(self) -> bool:
        """Whether the Image has all records that the leader of this epoch had committed when it first responded."""
        return self._readiness.is_current

    def when_current(self, callback: Callable[[], None]) -> None:
        """Call the callback once: now, or as soon as the Image is current."""
        self._readiness.when_current(callback)

    async def until_current(self, timeout_ms: int) -> None:
        """Wait until the Image is current. Raises ConfigError if no leader was found in time, or if this node cannot
        continue."""
        await self._readiness.wait(timeout_ms)

    def never_current(self, reason: str) -> None:
        """End `until_current` with this reason."""
        self._readiness.refuse(reason)

    def applied_by(self, node_id: int) -> int:
        """The last offset that another node has reported to this leader as applied; -1 if there is none."""
        return self._applied_offsets.applied(node_id)

    async def until_applied(self, nodes: Callable[[], Iterable[int]], end: int, timeout_ms: int) -> None:
        """Wait until all of `nodes()` have applied every record below `end`, or the timeout has passed."""
        await self._applied_offsets.wait(nodes, end, timeout_ms)

    def nodes_changed(self) -> None:
        """Check the callers of `until_applied` again, because the result of `nodes()` may have changed."""
        self._applied_offsets.look_again()

    # ---- StateLog

    @property
    def log(self) -> Log:
        """The metadata log."""
        return self.driver.log

    @property
    def image(self) -> Image:
        """The metadata of all committed records."""
        return self.driver.image

    @property
    def kraft_version(self) -> int:
        """The level of the feature kraft.version. The level is in control records, and so the Image does not contain
        it."""
        return self.driver.kraft_version

    @property
    def end(self) -> int:
        """The offset of the next record, which becomes the broker epoch of a registration."""
        return self.log.end

    @property
    def committed(self) -> int:
        """Every record below this offset has committed and is in the Image."""
        return self.driver.metadata.applied

    @property
    def is_writing_snapshot(self) -> bool:
        return self.driver.metadata.is_writing_snapshot

    def on_committed(self, callback: Callable[[], None]) -> None:
        """Add a callback for every advance of `committed`. It is called after `on_image`."""
        self._on_committed.append(callback)

    def on_image(self, callback: Callable[[Image, Image], None]) -> None:
        """Set the callback for every committed change. It gets the Image before and the Image after the change."""
        self.driver.metadata.on_image(callback)

    def on_damage(self, callback: Callable[[str], None]) -> None:
        """Set the callback for a metadata log that can no longer be written, so that this node cannot continue."""
        self.driver.metadata.on_damage(callback)

    def fail(self, why: str) -> None:
        """Report that this node cannot continue."""
        self.driver.fail(why)

    def append(self, records: Sequence[Stored]) -> int:
        """Append records as one batch, or a metadata transaction as several, and return the end of the log.

        The records commit when a majority has them. If this raises KafkaError, nothing was appended: NOT_CONTROLLER,
        INVALID_REQUEST for a value that no record can contain, or POLICY_VIOLATION for a batch that is too large.
        Raises Damage if this node can no longer take part in the quorum.
        """
        if not self.state.is_leader or self.log.offline is not None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        try:
            for record in records:
                record.serialized(frame_record)
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
        for piece in pieces(records):
            rows: list[Row] = [(None, record.value) for record in piece]
            self.driver.append(rows, [record.message for record in piece])
        return self.log.end

    async def replay(self) -> AsyncIterator[list[Stored]]:
        """The records of the committed Image, as in a snapshot, but without offsets and frames."""
        yield [Stored(None, None, message=record) for record in self.image.records()]

    # ---- events of the driver

    def _role_changed(self, before: raft.State) -> None:
        """Wake the tasks and fetches that wait, and call the subscribers. Called after the other parts of `raft`."""
        self._fetcher.look_again()
        self._registration.look_again()
        state = self.state
        if (before.epoch, before.leader_id) == (state.epoch, state.leader_id) and not before.is_leader:
            return
        log.info("epoch %d of the quorum: leader %d, this node %s", state.epoch, state.leader_id, state.role.value)
        if state.leader_id != raft.NOBODY:
            chronicle.info("node %d is the controller, epoch %d of the quorum", state.leader_id, state.epoch)
        self.fetches.wake_soon()
        self._tell_leadership()

    def _applied(self) -> None:
        """Call the subscribers after records were applied to the Image and it was published, so that responses may be
        sent."""
        for callback in self._on_committed:
            callback()
        if self.is_active != self._was_active:
            self._tell_leadership()

    def _tell_leadership(self) -> None:
        self._was_active = self.is_active
        for callback in self._on_leadership:
            callback()
