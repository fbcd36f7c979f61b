"""Writes the first records of a leader, before its controller decides on any command."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.raft.core import state as raft
from kpybroker.raft.driver import Driver
from kpybroker.raft.log.loading import MIN_ISR, first_records, leader_change
from kpybroker.raft.log.voters import voter_rows
from kpybroker.storage.files.file_pool import is_short
from kpybroker.wire.stored.metadata import frame_record

if TYPE_CHECKING:
    from kpybroker.world import World

log = logging.getLogger(__name__)


class LeaderDuties:
    """Starts a leader in its epoch. `directory` contains bootstrap.checkpoint, with the first records of a cluster."""

    def __init__(self, world: World, driver: Driver, directory: str) -> None:
        self._world = world
        self._driver = driver
        self._directory = directory
        self._active_from: int | None = None
        """The end of the log after this leader's first records; None before they are written."""

    @property
    def is_active(self) -> bool:
        """Whether this node leads, and its Image has every record from before its epoch as well as this leader's first
        records."""
        return self._active_from is not None and self._driver.metadata.applied >= self._active_from

    def elected(self, lead: raft.Lead) -> None:
        """Write a LeaderChange record. Also write the voters if the log does not contain them, or if this node's
        address has changed."""
        driver = self._driver
        known, voters = driver.voters, driver.voters.set
        rows = [leader_change(driver.state, lead.granting, known)]
        me = driver.identity.voter
        if known.kraft_version and me.endpoints and me not in voters.voters and known.counts(*me.key):
            rows += voter_rows(known.kraft_version, voters.with_voter(me))[1:]
        elif driver.log.end == 0:
            rows += known.records()
        try:
            driver.append(rows, [], control=True)
        except KafkaError as refusal:
            self._give_up(refusal)
        else:
            self.applied()

    def applied(self) -> None:
        """Write the first data records, once the Image has every record from before this epoch."""
        driver = self._driver
        has_old_records = driver.metadata.applied >= driver.state.epoch_start
        if not driver.is_leader or self._active_from is not None or not has_old_records:
            return
        try:
            self._write_first_records()
        except (KafkaError, OSError) as reason:
            self._give_up(reason)

    def _write_first_records(self) -> None:
        driver = self._driver
        min_isr = driver.config.text(MIN_ISR) or "1"
        records: list[Any] = first_records(self._world, self._directory, driver.image, min_isr)
        if records:
            driver.append([(None, frame_record(row)) for row in records], records)
        self._active_from = driver.log.end

    def _give_up(self, reason: KafkaError | OSError) -> None:
        """Resign if file descriptors have run out; this node may be elected again later. Raises `reason` if it is
        anything else."""
        code = reason.code if isinstance(reason, KafkaError) else ErrorCode.NONE
        if code != ErrorCode.KAFKA_STORAGE_ERROR and not is_short(reason):
            raise reason
        log.warning("this node was elected as leader of the quorum, but it resigns: %s", reason)
        self._driver.cannot_lead()

    def role_changed(self, before: raft.State) -> None:
        """Become inactive, if this node was the leader."""
        if before.is_leader:
            self._active_from = None
