"""A node of the metadata quorum as the rest of the broker sees it, and the duties it is made of.

A record is committed when a majority of voters has it on disk. The Image is moved forward by what has committed, and
told to whoever asked (`on_image`) before any answer of the controller leaves (`on_committed`). What the function wants
done is done in its order: persisted, then sent, then answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError, Damage, ErrorCode, KafkaError
from kpybroker.machine.contract import Stored
from kpybroker.metadata.chronicle import CHRONICLE
from kpybroker.metadata.image import Image
from kpybroker.raft.addresses import Active
from kpybroker.raft.core import state as raft
from kpybroker.raft.driver import Driver, Duties
from kpybroker.raft.duties.bootstrap import Founding
from kpybroker.raft.duties.fetching import Fetching
from kpybroker.raft.duties.leader_duties import Office
from kpybroker.raft.duties.metadata_disk import MetadataDisk
from kpybroker.raft.duties.readiness import Current
from kpybroker.raft.duties.self_registration import Joining
from kpybroker.raft.duties.server_rpcs import Answering
from kpybroker.raft.duties.voter_changes import Changes
from kpybroker.raft.duties.voter_rpcs import Asking
from kpybroker.raft.log.loading import first_state, way_out
from kpybroker.raft.log.metadata_log import pieces
from kpybroker.raft.log.quorum_state import read_quorum_state
from kpybroker.storage.dirs.directory import Directory
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.snapshot import Row
from kpybroker.wire.stored.metadata import frame_record
from kpybroker.world import World

log = logging.getLogger(__name__)
chronicle = logging.getLogger(CHRONICLE)

FAREWELL_S = 0.5
"""How long a leader that stops waits for the others to hear of it."""


class Quorum:
    """The metadata log of this node, a StateLog for the controller. `start`, `run`, then use, then `close`."""

    def __init__(self, world: World, config: BrokerConfig, directory: Directory) -> None:
        self._world = world
        self.config = config
        self.driver = driver = Driver(world, config, directory)
        self.path, self.voters, self.metadata = driver.path, driver.voters, driver.metadata
        self.addresses, self.identity, self.newcomer = driver.addresses, driver.identity, driver.newcomer
        self._on_committed: list[Callable[[], None]] = []
        timeout_ms = min(config.controller_quorum_request_timeout_ms, config.controller_quorum_election_timeout_ms)
        self._asking = Asking(
            world.network, self.addresses, self.identity, self.voters, timeout_ms, driver.take, driver.fail
        )
        self.current = Current(driver, lambda: self._asking.why_in_vain)
        self.founding = Founding(world, driver)
        self.answering = Answering(world, driver, self.founding)
        self._office = Office(world, driver, directory.path)
        self.changes = Changes(world, driver, self.answering)
        self._fetching = Fetching(world, driver, self.current)
        self._joining = Joining(world, driver, self.current)
        self._disk = MetadataDisk(world, driver)
        driver.serve(
            Duties(
                self._disk.keeps_from,
                self._carry_out,
                self._role_changed,
                self._look_again,
                self.answering.wake_soon,
                self._applied,
            )
        )

    # ---- start and stop

    async def start(self) -> None:
        """Open the log. A sole voter replays it, leads, and in a new directory writes its first records; then all is
        committed. Where there are others, `run` goes on from here: what has committed is for them to say.

        Raises ConfigError: the log cannot be read, is of a newer version, or names other voters.
        """
        try:
            await self.metadata.open()
            voted, static = read_quorum_state(self._world, self.path)
            self.voters.check(self.path)
            self.voters.check_static(static, self.path)
            self.addresses.learn_voters(self.voters.set.voters)
            self.driver.begin(
                first_state(self.config, self.voters, voted, self.image, self.log, is_new=self.newcomer.is_new)
            )
            if self.voters.are_alone:
                self.driver.step(raft.Start())
                await self.settle()
        except (Damage, OSError, KafkaError) as reason:
            raise ConfigError(
                f"the metadata log in {self.path} cannot be used: {reason}; {way_out(reason)}"
            ) from reason

    def run(self) -> None:
        """Take part in the quorum: others can reach this node from now on. A sole voter leads already."""
        self._disk.start()
        self._fetching.start()
        self._joining.start()
        if not self.state.is_leader:
            self.driver.take(raft.Start())

    @property
    def why_in_vain(self) -> str | None:
        """Why no leader can be elected, by the answers and the silence of the voters; None if one may be."""
        return self._asking.why_in_vain

    @property
    def lacks_majority(self) -> bool:
        """Whether this node looks for a leader, and too few voters answer to elect one."""
        return (self.state.asks_for_votes or self._fetching.looks_for_a_leader) and self._asking.lacks_majority

    async def settle(self) -> None:
        """Wait until all appended records are on disk; for a sole voter they have committed then. Raises Damage."""
        await self.metadata.settle()

    async def resign(self) -> None:
        """Let others lead, where this node does and there are any; it goes on answering."""
        if self.state.is_leader and self.state.others:
            self.driver.take(raft.Resign())
            try:
                async with asyncio.timeout(FAREWELL_S):
                    await self._asking.finish()
            except TimeoutError:
                log.info("not every voter has heard that this node stops")

    async def close(self) -> None:
        """Sync what is written and close the files; a log that is damaged is only closed."""
        self.driver.stop()
        self._disk.stop()
        await self.founding.close()
        await self._joining.close()
        await self._fetching.close()
        await self._asking.close()
        await self.metadata.close()
        self.driver.end()

    # ---- who leads

    @property
    def state(self) -> raft.State:
        """Of Raft's function on this node."""
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
        """This node leads: it appends, and others fetch from it. The controller waits for `is_active`."""
        return self.state.is_leader

    @property
    def is_active(self) -> bool:
        """This node leads, and its Image has everything from before its epoch: its controller decides now."""
        return self._office.is_active

    @property
    def active_controller(self) -> Active | None:
        """The active controller and its address; None while there is no leader, or its address is not known.

        This node itself may be the one: ask `broker.controller` then, which refuses with NOT_CONTROLLER until active.
        """
        address = self.addresses.of(self.leader_id)
        return None if address is None else Active(self.leader_id, *address)

    @property
    def is_current(self) -> bool:
        """The Image has what the leader of this epoch had committed: all that was before its epoch, at least."""
        return self.current.is_current

    def on_leadership(self, callback: Callable[[], None]) -> None:
        """Call after every change of `leader_id`, `epoch` or `is_active`; never from inside a step of a Machine."""
        self._office.then(callback)

    # ---- StateLog

    @property
    def log(self) -> Log:
        """The log itself."""
        return self.metadata.log

    @property
    def image(self) -> Image:
        """Of what has committed."""
        return self.metadata.image

    @property
    def kraft_version(self) -> int:
        """The level of the feature kraft.version; control records say it, so it is not in the Image."""
        return self.voters.kraft_version

    @property
    def end(self) -> int:
        """The offset that the next record gets; a broker's epoch is made of it."""
        return self.log.end

    @property
    def committed(self) -> int:
        """All records below have committed, and are in the Image."""
        return self.metadata.applied

    @property
    def is_writing_snapshot(self) -> bool:
        return self.metadata.is_writing_snapshot

    def on_committed(self, callback: Callable[[], None]) -> None:
        self._on_committed.append(callback)

    def on_image(self, callback: Callable[[Image, Image], None]) -> None:
        """Tell of every committed change: (the Image before, the Image after)."""
        self.metadata.tell_images(callback)

    def on_damage(self, callback: Callable[[str], None]) -> None:
        """Tell when the metadata log can no longer be written: this node cannot go on."""
        self.metadata.tell_damage(callback)

    def fail(self, why: str) -> None:
        """This node cannot go on."""
        self.metadata.fail(why)

    def append(self, records: Sequence[Stored]) -> int:
        """Append as one batch; it commits when a majority has it. Raises KafkaError, and then nothing was appended.

        NOT_CONTROLLER; INVALID_REQUEST for what no record can hold; POLICY_VIOLATION for more than fits into a batch:
        what is decided at once is written at once, a metadata transaction in several batches. Raises Damage: the end.
        """
        if not self.state.is_leader or self.log.offline is not None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        try:
            for record in records:
                if record.value is None:
                    record.value = frame_record(record.message)
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
        for piece in pieces(records):
            rows: list[Row] = [(None, record.value) for record in piece]
            self.metadata.append(rows, [record.message for record in piece], self.epoch, control=False)
        self.answering.wake_soon()
        return self.log.end

    async def replay(self) -> AsyncIterator[list[Stored]]:
        """The records that make the committed Image, as a snapshot has them: no offsets, no frames."""
        yield [Stored(None, None, message=record) for record in self.image.records()]

    # ---- what the driver asks and tells

    def _carry_out(self, effects: list[raft.Effect]) -> bool:
        granted = False
        for effect in effects:
            match effect:
                case raft.Lead():
                    self._office.begin(effect)
                case raft.Commit():
                    self.changes.committed(effect.end)
                    self.metadata.commit(effect.end)
                    self.answering.wake_soon()
                case raft.CaughtUp():
                    self.newcomer.caught_up()
                case raft.AnswerVote():
                    granted = effect.granted
                case raft.AskVote() | raft.AskBegin() | raft.AskEnd():
                    self._asking.ask(effect)
        return granted

    def _look_again(self) -> None:
        """Others vote: that may change whom this node fetches from, and what it tells the leader of itself."""
        self._fetching.turn()
        self._joining.look()

    def _role_changed(self, before: raft.State) -> None:
        state = self.state
        if before.is_leader:
            self._office.leave()
            self.answering.reign_ended()
            self.changes.reign_ended()
        self._look_again()
        if (before.epoch, before.leader_id) != (state.epoch, state.leader_id) or before.is_leader:
            log.info("epoch %d of the quorum: leader %d, this node %s", state.epoch, state.leader_id, state.role.value)
            if state.leader_id != raft.NOBODY:
                chronicle.info("node %d is the controller, epoch %d of the quorum", state.leader_id, state.epoch)
            self.answering.wake_soon()
            self._office.tell()

    def _applied(self) -> None:
        """More has committed, and followers of the Image have been told: answers may leave now."""
        self._office.take()
        for callback in self._on_committed:
            callback()
        self._office.look()
        self.current.look()
