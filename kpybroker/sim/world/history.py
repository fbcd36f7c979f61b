"""Records a run: its trace, the responses that clients received, and the breaches of guarantees that they show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import Keyed, Record

BREACHES_KEPT = 20
WALL_BEGINS_MS = 1_700_000_000_000
"""The time by the wall clock of a machine without skew when the loop's clock is at zero."""


ON_ITS_WAY_S = 60.0
"""The time for which an abandoned request may still reach a broker: a network partition, a pause and a stall
together."""


@dataclass(slots=True)
class Sent:
    """A record that a producer has sent, and its outcome."""

    value: bytes
    """A value that no other record has."""
    place: TopicPartition
    acks: int
    idempotent: bool
    is_acked: bool = False
    offset: int = -1
    """The offset in the record's acknowledgement."""
    key: bytes | None = None
    is_tombstone: bool = False
    """If true, the record has a null value and `value` is in a header."""
    at_s: float = 0.0
    """The time at which the record was created; set only for compacted topics."""
    due_ms: int | None = None
    """The time of a scheduled record. Its acknowledgement has an offset that it will not have."""
    acked_ms: int | None = None
    """The time of the acknowledgement, by the wall clock of a machine without skew."""
    transaction: SentTransaction | None = field(default=None, compare=False, repr=False)

    def schedule(self, due_ms: int) -> None:
        """Turn this into a record that is to be delivered at `due_ms`."""
        self.due_ms = due_ms

    def give_key(self, key: bytes, *, is_tombstone: bool, at_s: float) -> None:
        """Turn this into a record of a compacted topic that was created at `at_s`."""
        self.key, self.is_tombstone, self.at_s = key, is_tombstone, at_s

    @property
    def stored(self) -> Keyed:
        """The record in the form in which it is put into a batch."""
        if self.due_ms is not None:
            return self.key, self.value, (("deliver-at", b"%d" % self.due_ms),)
        return (self.key, None, (("value", self.value),)) if self.is_tombstone else (self.key, self.value)


@dataclass(slots=True)
class SentTransaction:
    """The records that a transactional producer has sent in one transaction."""

    producer: str
    records: list[Sent] = field(default_factory=list)
    commit_asked: bool = False
    is_committed: bool | None = None
    """The outcome that the coordinator has returned; None if it is unknown."""

    def add(self, sents: list[Sent]) -> None:
        """Record that the producer sends these records in the transaction."""
        self.records += sents
        for sent in sents:
            sent.transaction = self

    def ask(self, *, commit: bool) -> None:
        """Record that the producer sends EndTxn."""
        self.commit_asked = commit

    def decide(self, is_committed: bool | None) -> None:
        """Note the outcome in the coordinator's response; None if it is still unknown."""
        self.is_committed = is_committed


class HighestOffsets:
    """The highest offset that leaders have returned, by leader epoch."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}

    def least(self, epoch: int) -> int:
        """The lowest offset that a leader of this epoch or a later one may return. A former leader that has not noticed
        that it was replaced may return lower ones, because leaders have no leases."""
        return max((end for known, end in self._ends.items() if known <= epoch), default=0)

    def of(self, epoch: int) -> int:
        """The highest offset that leaders of exactly this epoch have returned."""
        return self._ends.get(epoch, 0)

    def reached(self, epoch: int, end: int) -> None:
        self._ends[epoch] = max(self._ends.get(epoch, 0), end)


@dataclass(slots=True)
class Ledger:
    """The records of one partition that clients have sent and read."""

    place: TopicPartition
    sent: dict[bytes, Sent] = field(default_factory=dict)
    by_producer: dict[str, list[Sent]] = field(default_factory=dict)
    seen: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """The leader epoch of the batch and the value that a consumer read, by offset."""
    seen_committed: dict[int, bytes] = field(default_factory=dict)
    """The value that a read_committed consumer read, by offset."""
    ends: HighestOffsets = field(default_factory=HighestOffsets)
    """The ends of the committed part of the log."""
    stable: HighestOffsets = field(default_factory=HighestOffsets)
    """Last stable offsets."""

    def ends_of(self, *, stable: bool) -> HighestOffsets:
        return self.stable if stable else self.ends


@dataclass(slots=True)
class Commits:
    """One group's offset commits for one partition. Clients only commit higher offsets, so a lower one is a breach."""

    sent: int = -1
    acked: int = -1
    unanswered: list[tuple[float, int]] = field(default_factory=list)
    """Time and offset of commits without a response. Each may still arrive, even after a later one."""

    def send(self, offset: int) -> int:
        """The offset to commit: this one, or a higher one that was sent earlier."""
        self.sent = max(self.sent, offset)
        return self.sent

    def acknowledge(self, offset: int) -> None:
        self.acked = max(self.acked, offset)

    def doubt(self) -> None:
        """Record that the group may have been deleted together with its commits."""
        self.acked = -1

    def floor(self, now_s: float) -> int:
        """The lowest possible committed offset."""
        self.unanswered = [(at, offset) for at, offset in self.unanswered if at > now_s - ON_ITS_WAY_S]
        return min([self.acked, *(offset for _, offset in self.unanswered)])


@dataclass(slots=True)
class TopicFate:
    """Whether a topic that was created or deleted during the run must exist at the end of the run; None if unknown."""

    must_exist: bool | None = None

    def becomes(self, must_exist: bool | None) -> None:
        self.must_exist = must_exist


class History:
    """The record of one run. If two runs have equal digests, even their bytes on the network are equal."""

    def __init__(
        self, now: Callable[[], float], *, keeps_trace: bool = False, on_breach: Callable[[], None] = lambda: None
    ) -> None:
        self._now = now
        self._keeps_trace = keeps_trace
        self.began_at = now()
        self.digest = 0
        self.trace: list[str] = []
        self.breaches: list[str] = []
        self._on_breach = on_breach
        self.ledgers: dict[TopicPartition, Ledger] = {}
        self._producers: dict[int, str] = {}
        self._incarnations: set[tuple[int, int]] = set()
        self.transactions: list[SentTransaction] = []
        self.commits: dict[tuple[str, TopicPartition], Commits] = {}
        self.topics: dict[str, TopicFate] = {}
        self._owners: dict[tuple[str, int, TopicPartition], str] = {}
        self.counts: dict[str, int] = {}
        """The number of events of each kind, for the report."""

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._now() - self.began_at

    def note(self, kind: str, text: str, facts: tuple[Any, ...] = ()) -> None:
        """Record an event in the digest and in the trace."""
        at = self.now_s
        self.digest = crc32(repr((at, kind, text, facts)).encode(), self.digest)
        if self._keeps_trace:
            line = text or " ".join(map(str, facts))
            self.trace.append(f"{at:10.6f} {kind:8} {line}")

    def count(self, what: str, more: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + more

    def breach(self, text: str) -> None:
        """Record a breach of a guarantee. `text` is one sentence."""
        self.note("BREACH", text)
        if len(self.breaches) < BREACHES_KEPT:
            self.breaches.append(f"at {self.now_s:.3f} s: {text}")
        self._on_breach()

    def ledger(self, place: TopicPartition) -> Ledger:
        found = self.ledgers.get(place)
        if found is None:
            found = self.ledgers[place] = Ledger(place)
        return found

    # ---- reports of clients

    def producer_id(self, producer: str, producer_id: int) -> None:
        """Check the response to InitProducerId: no two producers may have the same id."""
        other = self._producers.setdefault(producer_id, producer)
        if other != producer:
            self.breach(f"{producer} and {other} were both given producer id {producer_id}")

    def incarnation(self, producer_id: int, epoch: int) -> None:
        """Check the response to InitProducerId for a transactional id: no other producer may ever have this epoch."""
        if (producer_id, epoch) in self._incarnations:
            self.breach(f"epoch {epoch} of producer id {producer_id} was given twice")
        self._incarnations.add((producer_id, epoch))

    def committed(self, group: str, place: TopicPartition) -> Commits:
        return self.commits.setdefault((group, place), Commits())

    def fetched_commit(self, group: str, place: TopicPartition, floor: int, offset: int) -> None:
        """Check the response to OffsetFetch. `floor`: the lowest possible committed offset when the request was
        sent."""
        commits = self.committed(group, place)
        floor = min(floor, commits.floor(self.now_s))
        if offset < floor:
            self.breach(f"group {group} had committed {floor} for {place}, but OffsetFetch returned {offset}")
        if offset > commits.sent:
            self.breach(
                f"OffsetFetch returned {offset} for {place} of group {group}, which committed {commits.sent} at most"
            )

    def sends(self, producer: str, sent: Sent) -> None:
        """From now on, the record counts as possibly in the log. Must be called before the request is sent."""
        ledger = self.ledger(sent.place)
        ledger.sent[sent.value] = sent
        ledger.by_producer.setdefault(producer, []).append(sent)

    def acked(self, sent: Sent, offset: int) -> None:
        """Store that the broker has acknowledged the record at this offset; -1 if it returned no offset."""
        sent.is_acked, sent.offset = True, offset
        sent.acked_ms = WALL_BEGINS_MS + round(self._now() * 1000)
        self.count(f"acked acks={sent.acks}")
        ledger = self.ledger(sent.place)
        if offset >= 0 and sent.due_ms is None:
            seen = ledger.seen.get(offset)
            if seen is not None and seen[1] != sent.value and sent.acks == -1:
                self.breach(f"{_at(sent.place, offset)} is acknowledged for {sent.value!r} and was read as {seen[1]!r}")

    def read(
        self, reader: str, place: TopicPartition, offset: int, epoch: int, value: bytes, leader_epoch: int
    ) -> None:
        """Check a record that a consumer has read, in a batch of `epoch`, from a leader of `leader_epoch`."""
        ledger = self.ledger(place)
        before = ledger.seen.get(offset)
        if before is None:
            ledger.seen[offset] = (epoch, value)
            if value not in ledger.sent:
                self.breach(f"{reader} read {value!r} at {_at(place, offset)}, which no producer has sent")
        elif before[1] != value:
            self.breach(f"{_at(place, offset)} was {before[1]!r} in epoch {before[0]}, is {value!r} in epoch {epoch}")
        ledger.ends.reached(leader_epoch, offset + 1)

    def assigned(self, group: str, generation: int, member: str, places: list[TopicPartition]) -> None:
        """Check the response to SyncGroup: within a generation, a partition has one owner."""
        for place in places:
            owner = self._owners.setdefault((group, generation, place), member)
            if owner != member:
                self.breach(f"in generation {generation} of {group} both {owner} and {member} own {place}")

    def latest(self, place: TopicPartition, least_end: int, epoch: int, offset: int, *, stable: bool = False) -> None:
        """Check the response of the leader of `epoch` to ListOffsets. `least_end`: the lowest offset that was valid
        when the request was sent."""
        if offset < least_end:
            what = "last stable" if stable else "latest"
            self.breach(f"the {what} offset of {place[0]}-{place[1]} went back from {least_end} to {offset}")
        self.ledger(place).ends_of(stable=stable).reached(epoch, offset)


def value_of(record: Record) -> bytes:
    """The unique value of a record that was read."""
    if record.value is not None:
        return record.value
    return record.headers[0][1] or b"" if record.headers else b""


def _at(place: TopicPartition, offset: int) -> str:
    return f"offset {offset} of {place[0]}-{place[1]}"
