"""Runs the Raft function of `raft.core`: keeps a node's state and its metadata log, and takes a step for each event.

`step` calls the function, persists the vote, applies commits, and then calls the subscribers. The modules in
`raft/duties` depend on the driver and subscribe to it; `Quorum` creates them and determines their order.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kpybroker.client.dialer import controller_dialer
from kpybroker.config import BrokerConfig
from kpybroker.errors import Damage, KafkaError
from kpybroker.metadata.chronicle import CHRONICLE
from kpybroker.metadata.image import Image
from kpybroker.raft.addresses import Addresses
from kpybroker.raft.core import state as raft
from kpybroker.raft.core.core import step
from kpybroker.raft.election_timer import SHORT_RETRY_MS, ElectionTimer
from kpybroker.raft.log.identity import Identity, listener_of
from kpybroker.raft.log.metadata_log import MetadataLog
from kpybroker.raft.log.new_voter import NewVoter
from kpybroker.raft.log.quorum_state import write_quorum_state
from kpybroker.raft.log.voters import Voters
from kpybroker.storage.dirs.directory import Directory
from kpybroker.storage.dirs.formatting import METADATA_DIRECTORY
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.snapshot import Row
from kpybroker.world import World

log = logging.getLogger(__name__)
chronicle = logging.getLogger(CHRONICLE)


Question = raft.AskVote | raft.AskBegin | raft.AskEnd


class Driver:
    """Runs one node of the quorum. Each public list contains the subscribers of one event, which are called in
    order."""

    def __init__(self, world: World, config: BrokerConfig, directory: Directory) -> None:
        self._world = world
        self.dialer = controller_dialer(world, config)
        self.config = config
        self.path = f"{directory.path}/{METADATA_DIRECTORY}"
        self.timer = ElectionTimer(lambda: self.take(raft.TimerTick()))
        self._is_stopping = False
        """Whether the node is stopping, so that only records that are already written may still commit."""
        self._has_ended = False
        self._depth = 0  # the depth of nested steps: a subscriber may cause another event
        self._voters_have_changed = self._cannot_lead = False
        self.voters = Voters(config, directory.directory_id, lambda: self.state.high_watermark)
        self.metadata = MetadataLog(world, config, self.path, self.voters)
        self.metadata.listen(self._applied, lambda end: self.take(raft.Synced(end)), self._voters_changed)
        self.addresses = Addresses(config)
        self.identity = Identity(directory.cluster_id, directory.node_id, directory.directory_id, listener_of(config))
        if self.identity.listener is not None:
            self.addresses.learn([(directory.node_id, *self.identity.listener[1:])])
        self.new_voter = NewVoter(world, directory.path)
        self.state = raft.State(directory.node_id, ())
        self.vetoes: list[Callable[[raft.Event, list[raft.Effect]], bool]] = []
        """Called before a step. If any of them returns True, the step is not taken now."""
        self.elected: list[Callable[[raft.Lead], None]] = []
        """Called when this node leads a new epoch and has to write its first records."""
        self.questions: list[Callable[[Question], None]] = []
        """Called when a request to another voter is due."""
        self.role_changed: list[Callable[[raft.State], None]] = []
        """Called after the role, epoch, leader or vote has changed, with the state before the change."""
        self.voters_changed: list[Callable[[], None]] = []
        """Called after the voters in the log have changed, when the state has the new ones."""
        self.committed: list[Callable[[int], None]] = []
        """Called when the high watermark has risen to the given offset, before the records are applied to the Image."""
        self.applied: list[Callable[[], None]] = []
        """Called after committed records were applied to the Image."""
        self.news: list[Callable[[], None]] = []
        """Called when there is something new to fetch: records, or a higher high watermark."""

    def begin(self, state: raft.State) -> None:
        """Set the initial state, which was read from disk."""
        self.state = state

    def stop(self) -> None:
        """Take no more steps, except for syncs of records that are already written."""
        self._is_stopping = True
        self.timer.cancel()

    def end(self) -> None:
        """Take no more steps at all."""
        self._has_ended = True

    # ---- state

    @property
    def epoch(self) -> int:
        return self.state.voted.epoch

    @property
    def leader_id(self) -> int:
        """The leader of this epoch, as far as this node knows; -1 if there is none."""
        return self.state.leader_id

    @property
    def is_leader(self) -> bool:
        """Whether this node leads: it appends records, and other nodes fetch them from it."""
        return self.state.is_leader

    @property
    def log(self) -> Log:
        """The metadata log."""
        return self.metadata.log

    @property
    def image(self) -> Image:
        """The metadata of all committed records."""
        return self.metadata.image

    @property
    def kraft_version(self) -> int:
        """The level of the feature kraft.version. The level is in control records, and so the Image does not contain
        it."""
        return self.voters.kraft_version

    def fail(self, why: str) -> None:
        """Report that this node cannot continue."""
        self.metadata.fail(why)

    def append(self, rows: list[Row], records: Sequence[Any], *, control: bool = False) -> int:
        """Append one batch as the leader, and return the end of the log. `records` has the messages of data records.

        Raises Damage, or KafkaError if nothing was appended.
        """
        self.metadata.append(rows, records, self.epoch, control=control)
        self._publish(self.news)
        return self.log.end

    # ---- steps

    def take(self, event: raft.Event) -> None:
        """Take a step for an event without a caller. Damage and refusals are logged and not raised."""
        try:
            self.step(event)
        except Damage as damage:
            log.error("this node stops taking part in the quorum: %s", damage)
        except KafkaError as refusal:
            log.warning("a step of the quorum was postponed: %s", refusal)

    def step(self, event: raft.Event) -> bool:
        """Call the Raft function, execute its effects, and return whether a vote was granted.

        Raises Damage if this node can no longer take part in the quorum. Raises KAFKA_STORAGE_ERROR if file descriptors
        have run out; in that case nothing has changed.
        """
        if self._has_ended or (self._is_stopping and type(event) is not raft.Synced):
            return False
        before = self.state
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        after, effects = step(before._replace(tail=self.metadata.tail), event, now_ms, self._world.random)
        if any(forbids(event, effects) for forbids in self.vetoes):
            return False
        self._persist(effects, now_ms)
        self.state, sound = after, False
        self._depth += 1
        try:
            granted = self._carry_out(effects)
            if (before.role, before.voted) != (self.state.role, self.state.voted):
                for callback in self.role_changed:
                    callback(before)
            sound = True
        except OSError as error:
            raise Damage(str(error)) from error
        finally:
            self._depth -= 1
            if not sound:
                self._end(sys.exception())
        self._arm()
        if self._voters_have_changed:
            self._voters_changed()
        if self._cannot_lead:
            self.cannot_lead()
        return granted

    def _persist(self, effects: list[raft.Effect], now_ms: int) -> None:
        """Write and sync the vote. Raises KAFKA_STORAGE_ERROR or Damage."""
        try:
            for effect in effects:
                if isinstance(effect, raft.Persist):
                    write_quorum_state(self._world, self.path, effect.voted, self.voters.static)
        except KafkaError:
            self._arm(now_ms + SHORT_RETRY_MS)
            raise
        except OSError as error:
            damage = Damage(str(error))
            self._end(damage)
            raise damage from error

    def _carry_out(self, effects: list[raft.Effect]) -> bool:
        """Execute all effects except Persist, in order, and return whether a vote was granted."""
        granted = False
        for effect in effects:
            match effect:
                case raft.Lead():
                    for begin in self.elected:
                        begin(effect)
                case raft.Commit():
                    for committed in self.committed:
                        committed(effect.end)
                    self.metadata.commit(effect.end)
                    self._publish(self.news)
                case raft.CaughtUp():
                    self.new_voter.caught_up()
                case raft.AnswerVote():
                    granted = effect.granted
                case raft.AskVote() | raft.AskBegin() | raft.AskEnd():
                    for ask in self.questions:
                        ask(effect)
        return granted

    def _end(self, why: BaseException | None) -> None:
        """Take no more steps, because the state was not written to disk, or its effects were not executed."""
        self._has_ended = True
        self.fail(f"this node leaves the metadata quorum: {why!r}")

    def cannot_lead(self) -> None:
        """Resign, because this leader cannot write its first records. If a step is in progress, resign after it."""
        self._cannot_lead = bool(self._depth)
        if not self._cannot_lead:
            self.take(raft.Resign())

    def _voters_changed(self) -> None:
        """Pass the changed voters in the log to the Raft function. If a step is in progress, pass them after it."""
        self._voters_have_changed = bool(self._depth)
        if not self._voters_have_changed:
            self.addresses.learn_voters(self.voters.set.voters)
            chronicle.info("the voters of the quorum are %s", self.voters.set)
            self.take(self.voters.change)
            self._publish(self.voters_changed)

    def _arm(self, not_before_ms: int = 0) -> None:
        """Set the timer for the next Tick."""
        wake_ms = self.state.wake_ms
        if wake_ms is not None and not self._is_stopping:
            self.timer.set(max(wake_ms, not_before_ms))

    def _applied(self) -> None:
        self._publish(self.applied)

    @staticmethod
    def _publish(event: list[Callable[[], None]]) -> None:
        for callback in event:
            callback()
