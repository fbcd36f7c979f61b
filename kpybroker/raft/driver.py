"""Drives Raft's function: a node's state, its metadata log, and the one way from an event to what follows of it.

`step` lets the function decide, persists what it says, and hands the rest to the duties of the node: what they are told
is in `Duties`. They stand above the driver, and the quorum, which builds them, above both.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import NamedTuple

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
from kpybroker.raft.log.new_voter import Newcomer
from kpybroker.raft.log.quorum_state import write_quorum_state
from kpybroker.raft.log.voters import Voters
from kpybroker.storage.dirs.directory import Directory
from kpybroker.storage.dirs.formatting import METADATA_DIRECTORY
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.snapshot import Row
from kpybroker.world import World

log = logging.getLogger(__name__)
chronicle = logging.getLogger(CHRONICLE)


class Duties(NamedTuple):
    """What a driver asks of a node's duties, and tells them."""

    keeps_from: Callable[[raft.Event, list[raft.Effect]], bool]
    """Whether a step must not be taken, since its disk does not answer."""
    carry_out: Callable[[list[raft.Effect]], bool]
    """Do what the function wants done, in its order; whether a vote was granted."""
    role_changed: Callable[[raft.State], None]
    """The role, the epoch, the leader or the vote is another one than in this state before."""
    voters_changed: Callable[[], None]
    """The log says something else of who votes, and the function knows."""
    appended: Callable[[], None]
    """There is something new to fetch."""
    applied: Callable[[], None]
    """More has committed and is in the Image."""


class Driver:
    """The state of one node of the quorum. `duties` are given before the first step."""

    duties: Duties

    def __init__(self, world: World, config: BrokerConfig, directory: Directory) -> None:
        self._world = world
        self.config = config
        self.path = f"{directory.path}/{METADATA_DIRECTORY}"
        self.timer = ElectionTimer(lambda: self.take(raft.Tick()))
        self._stops = False
        """From now on only what is written already may still commit."""
        self._has_ended = False
        self._steps = 0  # those under way: what one does may ask for another
        self._voters_have_changed = self._cannot_lead = False
        self.voters = Voters(config, directory.directory_id, lambda: self.state.high_watermark)
        self.metadata = MetadataLog(world, config, self.path, self.voters)
        self.metadata.listen(self._applied, lambda end: self.take(raft.Synced(end)), self._voters_changed)
        self.addresses = Addresses(config)
        self.identity = Identity(directory.cluster_id, directory.node_id, directory.directory_id, listener_of(config))
        if self.identity.listener is not None:
            self.addresses.learn([(directory.node_id, *self.identity.listener[1:])])
        self.newcomer = Newcomer(world, directory.path)
        self.state = raft.State(directory.node_id, ())

    def serve(self, duties: Duties) -> None:
        """Ask and tell these, from the first step on."""
        self.duties = duties

    def begin(self, state: raft.State) -> None:
        """Go on from what the disk says."""
        self.state = state

    def stop(self) -> None:
        """Take no further step but for what is written already."""
        self._stops = True
        self.timer.cancel()

    def end(self) -> None:
        """Take no step any more."""
        self._has_ended = True

    # ---- what it knows

    @property
    def epoch(self) -> int:
        return self.state.voted.epoch

    @property
    def leader_id(self) -> int:
        """The leader of this epoch, as far as this node knows; -1 if there is none."""
        return self.state.leader_id

    @property
    def is_leader(self) -> bool:
        """This node leads: it appends, and others fetch from it."""
        return self.state.is_leader

    @property
    def log(self) -> Log:
        """The log itself."""
        return self.metadata.log

    @property
    def image(self) -> Image:
        """Of what has committed."""
        return self.metadata.image

    @property
    def committed(self) -> int:
        """All records below have committed, and are in the Image."""
        return self.metadata.applied

    @property
    def kraft_version(self) -> int:
        """The level of the feature kraft.version; control records say it, so it is not in the Image."""
        return self.voters.kraft_version

    def fail(self, why: str) -> None:
        """This node cannot go on."""
        self.metadata.fail(why)

    def append_control(self, rows: list[Row]) -> int:
        """Append control records of this leader's; where the log ends with them. Raises Damage."""
        self.metadata.append(rows, [], self.epoch, control=True)
        self.duties.appended()
        return self.log.end

    # ---- steps

    def take(self, event: raft.Event) -> None:
        """Step on an event without a caller: damage is logged, not raised."""
        try:
            self.step(event)
        except Damage as damage:
            log.error("the quorum goes on without this node: %s", damage)
        except KafkaError as refusal:
            log.warning("not now: %s", refusal)

    def step(self, event: raft.Event) -> bool:
        """Let the function decide, and do what it says; whether a vote was granted. Raises Damage, the end.

        KAFKA_STORAGE_ERROR where no descriptor is left for what must be on disk: all is as it was before the event.
        """
        if self._has_ended or (self._stops and type(event) is not raft.Synced):
            return False
        before = self.state
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        after, effects = step(before._replace(tail=self.metadata.tail), event, now_ms, self._world.random)
        if self.duties.keeps_from(event, effects):
            return False
        self._persist(effects, now_ms)
        self.state, sound = after, False
        self._steps += 1
        try:
            granted = self.duties.carry_out(effects)
            if (before.role, before.voted) != (self.state.role, self.state.voted):
                self.duties.role_changed(before)
            sound = True
        except OSError as error:
            raise Damage(str(error)) from error
        finally:
            self._steps -= 1
            if not sound:
                self._end(sys.exception())
        self._arm()
        if self._voters_have_changed:
            self._voters_changed()
        if self._cannot_lead:
            self.cannot_lead()
        return granted

    def _persist(self, effects: list[raft.Effect], now_ms: int) -> None:
        """Raises KAFKA_STORAGE_ERROR, Damage."""
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

    def _end(self, why: BaseException | None) -> None:
        """What comes later would rest on what is not on disk, or was not done."""
        self._has_ended = True
        self.fail(f"the metadata quorum ends here: {why!r}")

    def cannot_lead(self) -> None:
        """What a leader begins with cannot be written: another one may, at once or when the step under way is done."""
        self._cannot_lead = bool(self._steps)
        if not self._cannot_lead:
            self.take(raft.Resign())

    def _voters_changed(self) -> None:
        """The log says something else of who votes: that holds at once, or when the step is done that did it."""
        self._voters_have_changed = bool(self._steps)
        if not self._voters_have_changed:
            self.addresses.learn_voters(self.voters.set.voters)
            chronicle.info("the voters of the quorum are %s", self.voters.set)
            self.take(self.voters.change)
            self.duties.voters_changed()

    def _arm(self, not_before_ms: int = 0) -> None:
        """Set the timer for the next Tick."""
        wake_ms = self.state.wake_ms
        if wake_ms is not None and not self._stops:
            self.timer.set(max(wake_ms, not_before_ms))

    def _applied(self) -> None:
        self.duties.applied()
