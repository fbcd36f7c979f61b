"""The office of a leader: what it writes before anybody else may, and from when on its controller decides."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.raft.core import state as raft
from kpybroker.raft.driver import Driver
from kpybroker.raft.log.loading import MIN_ISR, leader_change, records_to_begin_with
from kpybroker.raft.log.voters import voter_rows
from kpybroker.storage.files.file_pool import is_short
from kpybroker.wire.stored.metadata import frame_record

if TYPE_CHECKING:
    from kpybroker.world import World

log = logging.getLogger(__name__)


class Office:
    """This node's, while it leads the quorum. directory: where the records are that a new cluster begins with."""

    def __init__(self, world: World, driver: Driver, directory: str) -> None:
        self._world = world
        self._driver = driver
        self._directory = directory
        self._callbacks: list[Callable[[], None]] = []
        self._from: int | None = None
        """Where the log ended when this leader had written what it begins with."""
        self._was_active = False

    @property
    def is_active(self) -> bool:
        """This node leads, and its Image has everything from before its epoch."""
        return self._from is not None and self._driver.committed >= self._from

    def then(self, callback: Callable[[], None]) -> None:
        """Call after every change of leader, epoch or `is_active`."""
        self._callbacks.append(callback)

    def begin(self, lead: raft.Lead) -> None:
        """The epoch's first records: who leads, and at the very start of a log who votes."""
        driver = self._driver
        known, voters = driver.voters, driver.voters.set
        rows = [leader_change(driver.state, lead.granting, known)]
        me = driver.identity.voter
        if known.kraft_version and me.endpoints and me not in voters.voters and known.counts(*me.key):
            rows += voter_rows(known.kraft_version, voters.with_voter(me))[1:]  # it listens elsewhere now
        elif driver.log.end == 0:
            rows += known.records()
        try:
            driver.metadata.append(rows, [], lead.epoch, control=True)
        except KafkaError as refusal:
            self._give_up(refusal)
        else:
            self.take()

    def take(self) -> None:
        """Write what a leader writes before anybody else may, once it knows all that came before its epoch."""
        driver = self._driver
        if not driver.state.is_leader or self._from is not None or driver.committed < driver.state.epoch_start:
            return
        try:
            self._take()
        except (KafkaError, OSError) as reason:
            self._give_up(reason)

    def _give_up(self, reason: KafkaError | OSError) -> None:
        """Where descriptors are short this node leads no more, and may be elected again. Raises any other reason."""
        code = reason.code if isinstance(reason, KafkaError) else ErrorCode.NONE
        if code != ErrorCode.KAFKA_STORAGE_ERROR and not is_short(reason):
            raise reason
        log.warning("this node was elected, and leads no more: %s", reason)
        self._driver.cannot_lead()

    def _take(self) -> None:
        driver = self._driver
        min_isr = driver.config.text(MIN_ISR) or "1"
        records: list[Any] = records_to_begin_with(self._world, self._directory, driver.image, min_isr)
        if records:
            driver.metadata.append([(None, frame_record(row)) for row in records], records, driver.epoch, control=False)
            driver.duties.appended()
        self._from = driver.log.end

    def leave(self) -> None:
        """This node leads no more."""
        self._from = None

    def look(self) -> None:
        """More has committed: this node may be active by it."""
        if self.is_active != self._was_active:
            self.tell()

    def tell(self) -> None:
        """Leader, epoch or `is_active` are others now."""
        self._was_active = self.is_active
        for callback in self._callbacks:
            callback()
