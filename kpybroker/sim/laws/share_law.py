"""The laws of one share group (KIP-932), on its deliveries and on the responses to its acknowledgements.

A *reign* is the time in which one leader keeps a share partition in memory. It is identified by the object in memory,
or None if it is not certain in which reign a delivery was made. Within a reign, a record has one holder until its lock
ends, and each delivery of the record increments its delivery count. An *era* begins when an admin alters or deletes the
group's offsets: then every record may be delivered again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kpybroker.errors import ErrorCode
from kpybroker.shares.partition import AcknowledgeType
from kpybroker.sim.world.history import History

FINAL = frozenset({AcknowledgeType.ACCEPT, AcknowledgeType.REJECT})
"""The acknowledgements after which a record is never delivered again."""
NOT_HELD = frozenset({int(ErrorCode.INVALID_RECORD_STATE), int(ErrorCode.INVALID_REQUEST)})
"""The refusals of acknowledgements of records that the member does not hold."""
WITHOUT_EFFECT = NOT_HELD | {int(ErrorCode.SHARE_SESSION_NOT_FOUND), int(ErrorCode.INVALID_SHARE_SESSION_EPOCH)}
"""Refusals that leave the records unchanged. After other refusals, the acknowledgement may have been written."""
UNSEEN_MAX = 2
"""The maximum number of deliveries of a record that were not observed, neither by a member nor in the leader's memory,
because responses were lost."""
ROUNDED_S = 0.002
"""Brokers round times down to milliseconds."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One record that was delivered to a member."""

    member: str
    node_id: int
    offset: int
    count: int
    asked_s: float
    """The time at which the fetch was sent."""
    until_s: float
    """The earliest time at which the lock may end."""
    reign: object | None
    leader_epoch: int
    """The leader epoch of the reign; -1 if that is not certain."""
    session: object | None
    """The member's session on the leader when the delivery arrived."""
    era: int = 0
    is_given_up: bool = False
    """Whether the member has acknowledged it, or ended its session."""
    is_doubtful: bool = False
    """Whether an earlier acknowledgement may have been written, although it was not confirmed."""
    is_final: bool = False
    """Whether the member has accepted or rejected it, and this may have been written."""

    def give_up(self) -> None:
        """Record that the member no longer claims to hold it."""
        self.is_given_up = True

    def acknowledged(self, kind: int) -> None:
        """Record that the member sends an acknowledgement of this type."""
        if kind != AcknowledgeType.RENEW:
            self.is_given_up = True
        if kind in FINAL:
            self.is_final = True

    def refused(self, kind: int) -> None:
        """Record that the acknowledgement had no effect."""
        if not self.is_doubtful:
            self.is_final = False
            if kind != AcknowledgeType.RENEW:
                self.is_given_up = False

    def doubt(self) -> None:
        """Record that the acknowledgement may have been written."""
        self.is_doubtful = True

    def renewed(self, until_s: float) -> None:
        """Record that the lock was extended."""
        self.until_s = max(self.until_s, until_s)


class Settled(NamedTuple):
    """A record that was accepted or rejected, with the time of the confirmation."""

    at_s: float
    reign: object | None
    leader_epoch: int
    counted: int
    """The count of the delivery that was acknowledged."""


@dataclass(slots=True)
class PlaceFacts:
    """The facts that the law has recorded about one partition."""

    era: int = 0
    floor: float = 0
    """Records below it need not be delivered."""
    begins_late: bool = False
    """Whether the group begins at an offset that is not known: at most `floor`."""
    is_doubtful: bool = False
    """Whether a change of the offsets without a response may still take effect."""
    lost: int = 0
    """The number of fetches without a response. Each may have delivered any record."""
    counts: dict[int, int] = field(default_factory=dict)
    """The highest delivery count that a leader had in memory, by offset."""
    values: dict[int, bytes] = field(default_factory=dict)
    deliveries: defaultdict[int, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    settled: dict[int, Settled] = field(default_factory=dict)

    def counted(self, offset: int, count: int) -> None:
        """Record a delivery count that a leader has in memory."""
        self.counts[offset] = max(self.counts.get(offset, 0), count)

    def begin_late(self) -> None:
        """Record that the group begins at an unknown offset. Every record from there on must be delivered."""
        self.begins_late, self.floor = True, math.inf

    def reach_down(self, offset: int) -> None:
        """Record that the group has begun at or before this offset."""
        if self.begins_late:
            self.floor = min(self.floor, offset)

    def lose(self) -> None:
        """Record that a fetch received no response."""
        self.lost += 1

    def begin_era(self, floor: int) -> None:
        """Begin an era, because a change of the offsets is sent or was confirmed."""
        self.era += 1
        self.begins_late = False
        self.floor = max(self.floor, floor)
        self.settled.clear()

    def doubt(self) -> None:
        """Record that a change of the offsets received no response."""
        self.is_doubtful = True

    def begin_anew(self, floor: int) -> None:
        """Begin anew at an offset, because the change was confirmed: every record from there on is delivered again."""
        if not self.is_doubtful:
            self.floor = floor
            self.deliveries.clear()
            self.counts.clear()


class ShareLaw:
    """Records the breaches of one group. limit: the maximum number of deliveries of a record. holds: returns
    whether the leader still has the reign and the session of a delivery."""

    def __init__(self, history: History, topic: str, limit: int, holds: Callable[[Delivery, int], bool]) -> None:
        self._history = history
        self._topic = topic
        self._limit = limit
        self._holds = holds
        self._facts: defaultdict[int, PlaceFacts] = defaultdict(PlaceFacts)

    def facts(self, index: int) -> PlaceFacts:
        return self._facts[index]

    def _at(self, index: int, offset: int) -> str:
        return f"offset {offset} of {self._topic}-{index}"

    # ---- deliveries

    def fetch_lost(self, indexes: Iterable[int]) -> None:
        """Record that a fetch of these partitions received no response."""
        for index in indexes:
            self._facts[index].lose()

    def ranges(
        self, member: str, index: int, ranges: Sequence[tuple[int, int]], batches: Sequence[tuple[int, int]]
    ) -> None:
        """Check that the acquired ranges of a response are in order, disjoint, and inside the batches sent with
        them."""
        last = -1
        sent = {offset for first, end in batches for offset in range(first, end + 1)}
        for first, end in ranges:
            if first <= last or end < first:
                self._history.breach(f"{member} acquired ranges of {self._topic}-{index} out of order: {list(ranges)}")
            if not sent.issuperset(range(first, end + 1)):
                self._history.breach(f"{member} acquired {first} to {end} of {self._topic}-{index} without its batches")
            last = end

    def delivered(self, index: int, delivery: Delivery) -> None:
        """Check and record a delivery to a member."""
        history, facts, offset = self._history, self._facts[index], delivery.offset
        delivery.era = facts.era
        facts.reach_down(offset)
        at = self._at(index, offset)
        if not 1 <= delivery.count <= self._limit:
            history.breach(f"{at} was delivered {delivery.count} times, but the limit is {self._limit}")
        settled = facts.settled.get(offset)
        if settled is not None and _follows(delivery, settled):
            history.breach(f"{at} was acknowledged, and then delivered to {delivery.member} again")
        for other in facts.deliveries[offset]:
            if other.reign is None or other.reign is not delivery.reign:
                continue
            if other.count == delivery.count:
                history.breach(f"{at} was delivered to {other.member} and {delivery.member} with count {other.count}")
            elif other.count < delivery.count and self._is_held(index, other):
                history.breach(f"{at} is held by {other.member}, but was delivered to {delivery.member}")
        facts.deliveries[offset].append(delivery)

    def read(self, index: int, member: str, offset: int, value: bytes, *, committed: bool) -> None:
        """Check the value of a delivered record."""
        known = self._facts[index].values.setdefault(offset, value)
        if known != value:
            self._history.breach(f"{self._at(index, offset)} was {known!r} and is {value!r} for {member}")
        sent = self._history.ledger((self._topic, index)).sent.get(value)
        if sent is None:
            self._history.breach(f"{member} was delivered {value!r}, which no producer has sent")
        elif committed:
            self._check_committed(index, offset, value)

    def _check_committed(self, index: int, offset: int, value: bytes) -> None:
        transaction = self._history.ledger((self._topic, index)).sent[value].transaction
        if transaction is not None and (transaction.is_committed is False or not transaction.commit_asked):
            self._history.breach(f"{value!r} at {self._at(index, offset)} was delivered, but was not committed")

    def _is_held(self, index: int, delivery: Delivery) -> bool:
        """Whether the leader must still have the lock."""
        lasts = self._history.now_s < delivery.until_s - ROUNDED_S
        return lasts and not delivery.is_given_up and self._holds(delivery, index)

    def begins_late(self, index: int) -> None:
        """Record that the group begins at the end that the partition has at the first fetch, not at its start."""
        self._facts[index].begin_late()

    def told_start(self, index: int, start: int) -> None:
        """Record the start offset that an admin received."""
        self._facts[index].reach_down(start)

    # ---- acknowledgements

    def acknowledges(self, index: int, deliveries: Iterable[tuple[Delivery, int]]) -> None:
        """Record that the member sends an acknowledgement with these types. If a record was delivered to it several
        times, the broker may apply the acknowledgement to another of these deliveries."""
        for delivery, kind in deliveries:
            for other in self._facts[index].deliveries.get(delivery.offset, ()):
                if other.member == delivery.member and other is not delivery:
                    other.give_up()
                    other.doubt()
            delivery.acknowledged(kind)

    def was_delivered(self, index: int, offset: int, member: str) -> bool:
        """Whether the record was ever delivered to the member."""
        return any(each.member == member for each in self._facts[index].deliveries.get(offset, ()))

    def confirmed(self, index: int, deliveries: Iterable[tuple[Delivery, int]], until_s: float) -> None:
        """Record that an acknowledgement succeeded. until_s: the end of locks that were renewed."""
        facts, now_s = self._facts[index], self._history.now_s
        for delivery, kind in deliveries:
            if delivery.era != facts.era:
                continue
            if kind == AcknowledgeType.RENEW:
                delivery.renewed(until_s)
            elif kind in FINAL and not facts.is_doubtful:
                settled = Settled(now_s, delivery.reign, delivery.leader_epoch, delivery.count)
                facts.settled.setdefault(delivery.offset, settled)

    def refused(self, index: int, deliveries: Sequence[tuple[Delivery, int]], code: int, *, is_sound: bool) -> None:
        """Check and record that an acknowledgement was refused. is_sound: the request contained only these records of
        the partition."""
        if code not in WITHOUT_EFFECT:
            self.unanswered(deliveries)
            return
        for delivery, kind in deliveries:
            delivery.refused(kind)
        era = self._facts[index].era
        if not (is_sound and code in NOT_HELD):
            return
        if all(each.era == era and not each.is_doubtful and self._is_held(index, each) for each, _ in deliveries):
            delivery = deliveries[0][0]
            self._history.breach(
                f"{delivery.member} holds {self._at(index, delivery.offset)}, but its acknowledgement was refused: "
                f"{ErrorCode(code).name}"
            )

    def unanswered(self, deliveries: Iterable[tuple[Delivery, int]]) -> None:
        """Record that an acknowledgement received no response."""
        for delivery, _ in deliveries:
            delivery.doubt()

    # ---- offsets that are altered or deleted

    def changes_offsets(self, index: int, start: int) -> None:
        """Record that an admin requests a new start offset of the group in this partition."""
        self._facts[index].begin_era(start)

    def offsets_changed(self, index: int, start: int) -> None:
        """Record that the group now begins at this offset."""
        facts = self._facts[index]
        facts.begin_era(start)
        facts.begin_anew(start)

    def doubts_offsets(self, index: int) -> None:
        """Record that the change received no response."""
        self._facts[index].doubt()

    # ---- the end

    def check_counts(self) -> None:
        """Check that in each reign the count rises by one with each delivery, except for deliveries whose response was
        lost."""
        for index, facts in self._facts.items():
            for offset, deliveries in facts.deliveries.items():
                counts: defaultdict[int, list[int]] = defaultdict(list)
                for each in deliveries:
                    if each.reign is not None:
                        counts[id(each.reign)].append(each.count)
                for found in counts.values():
                    if max(found) - min(found) + 1 - len(set(found)) > facts.lost:
                        self._history.breach(f"{self._at(index, offset)} was delivered with counts {sorted(found)}")

    def check_end(self, index: int, found: Sequence[tuple[int, bytes]], *, committed: bool) -> None:
        """Check that all records that a consumer finds were acknowledged, or delivered as often as the limit allows."""
        facts, history = self._facts[index], self._history
        values = dict(found)
        for offset, value in facts.values.items():
            if committed:
                self._check_committed(index, offset, value)
            if values.get(offset) != value:
                history.breach(
                    f"{value!r} was delivered at {self._at(index, offset)}, which now has {values.get(offset)!r}"
                )
        for offset in values:
            deliveries = facts.deliveries.get(offset, [])
            most = max((each.count for each in deliveries), default=0)
            if (
                offset >= facts.floor
                and not any(each.is_final for each in deliveries)
                and max(most, facts.counts.get(offset, 0)) + min(facts.lost, UNSEEN_MAX) < self._limit
            ):
                history.breach(f"{self._at(index, offset)} was delivered {most} times, and never acknowledged")


def _follows(delivery: Delivery, settled: Settled) -> bool:
    """Whether the record was certainly settled before this delivery. A previous leader that has not yet learned
    of its successor may still deliver the record, because leaders have no leases; acknowledgements to it are
    refused."""
    if delivery.reign is not None and delivery.reign is settled.reign:
        return delivery.asked_s >= settled.at_s or delivery.count > settled.counted
    return delivery.asked_s >= settled.at_s and delivery.leader_epoch >= settled.leader_epoch >= 0
