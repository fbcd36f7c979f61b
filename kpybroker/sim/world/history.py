"""What happened: the trace of a run, what clients were told, and every breach of the contract that this shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from kpybroker.wire.records.batch import Keyed, Record

Place = tuple[str, int]
"""A topic and a partition."""
BREACHES_KEPT = 20
WALL_BEGINS_MS = 1_700_000_000_000
"""The wall clock of a machine without skew, when the loop's clock is at zero."""


ON_ITS_WAY_S = 60.0
"""How long a request that was given up may still reach a broker: a partition, a pause and a stall together."""


@dataclass(slots=True)
class Sent:
    """A record that a producer has sent: what is known of its fate."""

    value: bytes
    """No other record has it."""
    place: Place
    acks: int
    idempotent: bool
    is_acked: bool = False
    offset: int = -1
    """Where it is, says its acknowledgement."""
    key: bytes | None = None
    is_tombstone: bool = False
    """Its value is then a header."""
    at_s: float = 0.0
    """When it was made, where that counts."""
    transaction: Transaction | None = field(default=None, compare=False, repr=False)

    def give_key(self, key: bytes, *, is_tombstone: bool, at_s: float) -> None:
        """A record of a compacted topic, made at `at_s`."""
        self.key, self.is_tombstone, self.at_s = key, is_tombstone, at_s

    @property
    def stored(self) -> Keyed:
        """As it is in a batch."""
        return (self.key, None, (("value", self.value),)) if self.is_tombstone else (self.key, self.value)


@dataclass(slots=True)
class Transaction:
    """What a transactional producer has sent between two ends."""

    producer: str
    records: list[Sent] = field(default_factory=list)
    commit_asked: bool = False
    is_committed: bool | None = None
    """What the coordinator has said; None where it said nothing that counts."""

    def ask(self, *, commit: bool) -> None:
        """Its producer asks for the end."""
        self.commit_asked = commit

    def decide(self, is_committed: bool | None) -> None:
        """The coordinator has answered; None where the answer leaves it open."""
        self.is_committed = is_committed


class Reach:
    """How far leaders have shown or told something to be, by leader epoch."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}

    def least(self, epoch: int) -> int:
        """What a leader of this epoch, or a later one, must have. One that was deposed and does not know it yet may be
        behind: leaders have no leases."""
        return max((end for known, end in self._ends.items() if known <= epoch), default=0)

    def of(self, epoch: int) -> int:
        """What leaders of this very epoch have shown."""
        return self._ends.get(epoch, 0)

    def reached(self, epoch: int, end: int) -> None:
        self._ends[epoch] = max(self._ends.get(epoch, 0), end)


@dataclass(slots=True)
class Ledger:
    """One partition, as clients have seen it."""

    place: Place
    sent: dict[bytes, Sent] = field(default_factory=dict)
    by_producer: dict[str, list[Sent]] = field(default_factory=dict)
    seen: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Offset -> leader epoch of its batch, and value, as read by a consumer."""
    seen_committed: dict[int, bytes] = field(default_factory=dict)
    """Offset -> value, as read by somebody who wants committed transactions alone."""
    ends: Reach = field(default_factory=Reach)
    """How far the log is committed."""
    stable: Reach = field(default_factory=Reach)
    """Last stable offsets."""

    def told(self, *, stable: bool) -> Reach:
        return self.stable if stable else self.ends


@dataclass(slots=True)
class Commits:
    """One group's commits for one partition. Only ever upwards, so that going back is seen."""

    sent: int = -1
    acked: int = -1
    unanswered: list[tuple[float, int]] = field(default_factory=list)
    """When, and what: it may still be on its way, and come after what was sent later."""

    def send(self, offset: int) -> int:
        """A commit of this offset, or of a higher one sent before, is on its way."""
        self.sent = max(self.sent, offset)
        return self.sent

    def acknowledge(self, offset: int) -> None:
        self.acked = max(self.acked, offset)

    def doubt(self) -> None:
        """The group may have been deleted, with all that was committed."""
        self.acked = -1

    def floor(self, now_s: float) -> int:
        """What is committed is not below this."""
        self.unanswered = [(at, offset) for at, offset in self.unanswered if at > now_s - ON_ITS_WAY_S]
        return min([self.acked, *(offset for _, offset in self.unanswered)])


@dataclass(slots=True)
class Fate:
    """A topic that was made, or deleted, on the way: what must be true of it in the end. None where nobody knows."""

    must_exist: bool | None = None

    def becomes(self, must_exist: bool | None) -> None:
        self.must_exist = must_exist


class History:
    """The notes of one run. Equal digests mean equal runs, down to the bytes on the network."""

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
        self.ledgers: dict[Place, Ledger] = {}
        self._producers: dict[int, str] = {}
        self._incarnations: set[tuple[int, int]] = set()
        self.transactions: list[Transaction] = []
        self.commits: dict[tuple[str, Place], Commits] = {}
        self.topics: dict[str, Fate] = {}
        self._owners: dict[tuple[str, int, Place], str] = {}
        self.counts: dict[str, int] = {}
        """How often what happened: for the report."""

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._now() - self.began_at

    def note(self, kind: str, text: str, facts: tuple[Any, ...] = ()) -> None:
        """An event: part of the digest, and a line of the trace."""
        at = self.now_s
        self.digest = crc32(repr((at, kind, text, facts)).encode(), self.digest)
        if self._keeps_trace:
            told = text or " ".join(map(str, facts))
            self.trace.append(f"{at:10.6f} {kind:8} {told}")

    def count(self, what: str, more: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + more

    def breach(self, text: str) -> None:
        """The contract is broken: one sentence."""
        self.note("BREACH", text)
        if len(self.breaches) < BREACHES_KEPT:
            self.breaches.append(f"at {self.now_s:.3f} s: {text}")
        self._on_breach()

    def ledger(self, place: Place) -> Ledger:
        found = self.ledgers.get(place)
        if found is None:
            found = self.ledgers[place] = Ledger(place)
        return found

    # ---- what clients tell

    def producer_id(self, producer: str, producer_id: int) -> None:
        """InitProducerId has answered: no two may have one id."""
        other = self._producers.setdefault(producer_id, producer)
        if other != producer:
            self.breach(f"{producer} and {other} were both given producer id {producer_id}")

    def incarnation(self, producer_id: int, epoch: int) -> None:
        """InitProducerId has answered for a transactional id: nobody else may ever have this epoch."""
        if (producer_id, epoch) in self._incarnations:
            self.breach(f"epoch {epoch} of producer id {producer_id} was given twice")
        self._incarnations.add((producer_id, epoch))

    def committed(self, group: str, place: Place) -> Commits:
        return self.commits.setdefault((group, place), Commits())

    def fetched_commit(self, group: str, place: Place, floor: int, offset: int) -> None:
        """OffsetFetch has answered; `floor` is that of the moment when it was asked."""
        commits = self.committed(group, place)
        floor = min(floor, commits.floor(self.now_s))
        if offset < floor:
            self.breach(f"group {group} had committed {floor} for {place}, and is told {offset}")
        if offset > commits.sent:
            self.breach(f"group {group} is told {offset} for {place}, and has committed {commits.sent} at most")

    def sends(self, producer: str, sent: Sent) -> None:
        """Before the request leaves: from now on the record may be there."""
        ledger = self.ledger(sent.place)
        ledger.sent[sent.value] = sent
        ledger.by_producer.setdefault(producer, []).append(sent)

    def acked(self, sent: Sent, offset: int) -> None:
        """The broker has said where the record is; -1 where it did not say."""
        sent.is_acked, sent.offset = True, offset
        self.count(f"acked acks={sent.acks}")
        ledger = self.ledger(sent.place)
        if offset >= 0:
            seen = ledger.seen.get(offset)
            if seen is not None and seen[1] != sent.value and sent.acks == -1:
                self.breach(f"{_at(sent.place, offset)} is acknowledged for {sent.value!r} and was read as {seen[1]!r}")

    def read(self, reader: str, place: Place, offset: int, epoch: int, value: bytes, leader_epoch: int) -> None:
        """A consumer has read a record, in a batch of `epoch`, from a leader of `leader_epoch`."""
        ledger = self.ledger(place)
        before = ledger.seen.get(offset)
        if before is None:
            ledger.seen[offset] = (epoch, value)
            if value not in ledger.sent:
                self.breach(f"{reader} read {value!r} at {_at(place, offset)}, which nobody has sent")
        elif before[1] != value:
            self.breach(f"{_at(place, offset)} was {before[1]!r} in epoch {before[0]}, is {value!r} in epoch {epoch}")
        ledger.ends.reached(leader_epoch, offset + 1)

    def assigned(self, group: str, generation: int, member: str, places: list[Place]) -> None:
        """SyncGroup has answered: within a generation a partition has one owner."""
        for place in places:
            owner = self._owners.setdefault((group, generation, place), member)
            if owner != member:
                self.breach(f"in generation {generation} of {group} both {owner} and {member} have {place}")

    def latest(self, place: Place, least_end: int, epoch: int, offset: int, *, stable: bool = False) -> None:
        """ListOffsets was answered by the leader of `epoch`, whose `least_end` is of when it was asked."""
        if offset < least_end:
            what = "last stable" if stable else "latest"
            self.breach(f"the {what} offset of {place[0]}-{place[1]} went back from {least_end} to {offset}")
        self.ledger(place).told(stable=stable).reached(epoch, offset)


def value_of(record: Record) -> bytes:
    """Of a record that was read, the value that no other has."""
    if record.value is not None:
        return record.value
    return record.headers[0][1] or b"" if record.headers else b""


def _at(place: Place, offset: int) -> str:
    return f"offset {offset} of {place[0]}-{place[1]}"
