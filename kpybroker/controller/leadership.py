"""Creates the record for every change of a partition, and elects a leader if the change requires it.

Sources: KIP-455 (reassignment), KIP-704 (leader recovery), KIP-966 (eligible leader replicas).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from kpybroker.controller.directories import directories_for, is_online
from kpybroker.controller.election_rules import Rules
from kpybroker.controller.state import ControllerState, TopicState
from kpybroker.metadata.topics import NO_LEADER, NO_LEADER_CHANGE, PartitionImage
from kpybroker.wire.directory_ids import UNASSIGNED
from kpybroker.wire.stored import metadata as stored

RECOVERED, RECOVERING = 0, 1
NOT_SAID = -1


class Election(Enum):
    """The type of an election: the replicas from which it may choose the leader."""

    ONLINE = "the current leader, or another replica that is live and in sync"
    PREFERRED = "the first replica if it can lead, else a leader as for ONLINE"
    UNCLEAN = "a leader as for ONLINE, else any live replica: acknowledged records may be lost"


class Wanted(NamedTuple):
    """The wanted change of a partition; a field with None does not change."""

    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    recovery: int | None = None
    election: Election = Election.ONLINE
    lost_its_log: int | None = None
    """A broker that did not stop cleanly, so that its log may be incomplete (KIP-966)."""
    directories: tuple[bytes, ...] | None = None
    """The new directories of the replicas; set together with `lost_its_log` if that broker has lost its directory."""


@dataclass(slots=True)
class _Target:
    """The state of a partition while its change is computed."""

    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    removing: tuple[int, ...]
    adding: tuple[int, ...]
    elr: tuple[int, ...]
    last_known: tuple[int, ...]
    recovery: int
    leader: int
    directories: tuple[bytes, ...]


class PartitionChange:
    """Creates the change records of one topic's partitions. `live` returns whether a broker may lead."""

    def __init__(self, state: ControllerState, rules: Rules, topic: TopicState, live: Callable[[int], bool]) -> None:
        self._state = state
        self._topic = topic
        self._live = live
        self._elr = rules.eligible_leader_replicas
        self._min_isr = rules.min_isr(topic.name) if self._elr else 1

    def record(self, index: int, wanted: Wanted) -> Any | None:
        """The PartitionChangeRecord of a change, including any election that is needed; None if nothing changes."""
        now = self._topic.partitions[index]
        target = _Target(
            isr=now.isr if wanted.isr is None else wanted.isr,
            replicas=now.replicas if wanted.replicas is None else wanted.replicas,
            removing=now.removing_replicas if wanted.removing is None else wanted.removing,
            adding=now.adding_replicas if wanted.adding is None else wanted.adding,
            elr=(),
            last_known=(),
            recovery=now.leader_recovery_state if wanted.recovery is None else wanted.recovery,
            leader=now.leader,
            directories=now.directories if wanted.directories is None else wanted.directories,
        )
        _complete_reassignment(target)
        if self._elr:
            target.elr = self._eligible(now, target, wanted.lost_its_log)
            gone = wanted.lost_its_log if wanted.directories is not None else None
            target.last_known = tuple(node_id for node_id in now.last_known_elr if node_id != gone)
        elif not target.isr and (wanted.directories is None or wanted.lost_its_log is None):
            # the last in-sync replica stays: no other replica is known to have all records
            target.isr = tuple(node_id for node_id in now.isr if node_id in target.replicas)
        online = self._online(now, target)
        is_clean = self._elect(now, target, wanted.election, online)
        if not is_clean:
            target.elr = target.last_known = ()  # the replicas' logs may differ from the new leader's
        elif self._elr:
            self._note_eligible(now, target, wanted)
        return self._difference(index, now, target, wanted.directories)

    def _eligible(self, now: PartitionImage, target: _Target, lost_its_log: int | None) -> tuple[int, ...]:
        """The eligible leader replicas. Each has all records that were acknowledged while at least min.insync.replicas
        replicas were in sync."""
        if len(target.isr) >= min(self._min_isr, len(target.replicas)):
            return ()
        return tuple(
            node_id
            for node_id in target.replicas
            if (node_id in now.isr or node_id in now.eligible_leader_replicas)
            and node_id not in target.isr
            and node_id != lost_its_log
        )

    def _note_eligible(self, now: PartitionImage, target: _Target, wanted: Wanted) -> None:
        target.elr = self._eligible(now, target, wanted.lost_its_log)
        if len(target.isr) >= min(self._min_isr, len(target.replicas)):
            target.last_known = ()
        elif not target.isr:
            # the last in-sync replica was the leader, or a reassignment removed its leadership while its broker was
            # fenced
            last = now.isr[0] if now.leader == NO_LEADER and len(now.isr) == 1 else now.leader
            if last != NO_LEADER:
                has_it = wanted.directories is None or last != wanted.lost_its_log
                target.last_known = (last,) if has_it else ()

    def _online(self, now: PartitionImage, target: _Target) -> frozenset[int]:
        """The replicas that may lead: on live brokers, in directories that are online."""
        places = dict(zip(now.replicas, target.directories, strict=False))
        brokers = self._state.brokers
        return frozenset(
            node_id
            for node_id in target.replicas
            if self._live(node_id) and is_online(brokers[node_id], places.get(node_id, UNASSIGNED))
        )

    def _elect(self, now: PartitionImage, target: _Target, election: Election, online: frozenset[int]) -> bool:
        """Elect a leader. Returns True if no acknowledged record can be lost."""
        chosen = self._clean_leader(now, target, election, online)
        if chosen is not None:
            target.leader = chosen
            if chosen not in target.isr:
                target.isr = (chosen,)  # elected from the eligible replicas: the other replicas must get in sync again
            return True
        chosen = self._unclean_leader(target, election, online)
        if chosen is None:
            target.leader = NO_LEADER
            return True
        target.leader = chosen
        target.isr = (chosen,)
        target.recovery = RECOVERING
        return False

    def _clean_leader(
        self, now: PartitionImage, target: _Target, election: Election, online: frozenset[int]
    ) -> int | None:
        in_sync = [node_id for node_id in target.replicas if node_id in target.isr and node_id in online]
        if election is Election.PREFERRED and in_sync and in_sync[0] == target.replicas[0]:
            return in_sync[0]
        if now.leader in in_sync:
            return now.leader
        if in_sync:
            return in_sync[0]
        return next((node_id for node_id in target.replicas if node_id in target.elr and node_id in online), None)

    def _unclean_leader(self, target: _Target, election: Election, online: frozenset[int]) -> int | None:
        if self._elr and not target.isr and not target.elr and len(target.last_known) == 1:
            # no replica is known to have all records; the last leader has the most (balanced recovery)
            (last,) = target.last_known
            if last in target.replicas and last in online:
                return last
        if election is Election.UNCLEAN:
            return next((node_id for node_id in target.replicas if node_id in online), None)
        return None

    def _difference(
        self, index: int, now: PartitionImage, target: _Target, moved: tuple[bytes, ...] | None
    ) -> Any | None:
        record = stored.PartitionChangeRecord(partition_id=index, topic_id=self._topic.topic_id)
        if target.isr != now.isr:
            record.isr = list(target.isr)
        if target.replicas != now.replicas:
            record.replicas = list(target.replicas)
            record.directories = directories_for(self._state, now, target.replicas)
        elif moved is not None:
            record.directories = list(moved)
        if target.removing != now.removing_replicas:
            record.removing_replicas = list(target.removing)
        if target.adding != now.adding_replicas:
            record.adding_replicas = list(target.adding)
        if target.elr != now.eligible_leader_replicas:
            record.eligible_leader_replicas = list(target.elr)
        if target.last_known != now.last_known_elr:
            record.last_known_elr = list(target.last_known)
        if target.recovery != now.leader_recovery_state:
            record.leader_recovery_state = target.recovery
        dropped = any(node_id not in target.replicas for node_id in now.replicas)
        if target.leader != now.leader or (dropped and target.leader != NO_LEADER):
            record.leader = target.leader  # a removed replica must not continue to fetch in the old epoch
        return record if _says_something(record) else None


def _complete_reassignment(target: _Target) -> None:
    """Complete a reassignment if all added replicas are in sync, and at least one of the remaining replicas is in
    sync."""
    if not (target.adding or target.removing):
        return
    staying = tuple(node_id for node_id in target.isr if node_id not in target.removing)
    if staying and all(node_id in target.isr for node_id in target.adding):
        target.replicas = tuple(node_id for node_id in target.replicas if node_id not in target.removing)
        target.isr = staying
        target.removing = target.adding = ()


def _says_something(record: stored.PartitionChangeRecord) -> bool:
    lists = (
        record.isr,
        record.replicas,
        record.removing_replicas,
        record.adding_replicas,
        record.eligible_leader_replicas,
        record.last_known_elr,
    )
    changes = any(each is not None for each in (*lists, record.directories))
    return changes or record.leader != NO_LEADER_CHANGE or record.leader_recovery_state != NOT_SAID
