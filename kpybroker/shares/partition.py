"""The records of one share partition that are in flight, in the memory of the partition's leader (KIP-932).

The offsets from `start` to `end` are in flight: everything before them is acknowledged or archived, and nothing after
them was ever delivered. They are stored as runs of offsets with the same state, which are split as late and joined as
early as possible. Gaps in the log are also in flight. Nothing here waits or reads a clock. When the leader fails, only
the state that was written to the share coordinator remains, so an acknowledgement is first marked as pending, and takes
effect when it has been written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.shares.batches import TERMINAL, DeliveryState, StateBatch
from kpybroker.shares.runs import ACKNOWLEDGED, ACQUIRED, ARCHIVED, ARCHIVING, AVAILABLE, Letter, Run

Span = tuple[int, int]
"""First and last offset."""


class AcknowledgeType(IntEnum):
    """The acknowledgement types of a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Limits(NamedTuple):
    """Settings of a group. They may change at any time, and a change applies from the next use on."""

    lock_ms: int
    """The time for which a record stays acquired."""
    max_deliveries: int
    """A record that was delivered this many times is archived instead of being delivered again."""
    max_in_flight: int
    """While this many records are in flight, no record is acquired for the first time."""
    has_letters: bool = False
    """Whether records that were rejected, or delivered too often, become dead letters before they are archived."""


class Wish(NamedTuple):
    """The limits on the records that a fetch may acquire. Whole batches of the log are acquired, even beyond
    `max_records`, unless `is_exact`."""

    max_records: int
    batch_size: int
    """The number of records after which a range of acquired records ends, at the end of a batch of the log."""
    is_exact: bool = False


class Acquired(NamedTuple):
    """A range of records that were acquired together. `deliveries` includes this delivery."""

    first: int
    last: int
    deliveries: int


class Acknowledgement(NamedTuple):
    """The acknowledgement of the records from first to last: one type for all of them, or one for each."""

    first: int
    last: int
    types: Sequence[int]


class Write(NamedTuple):
    """A write to the share coordinator. start: the first offset in flight before the write takes effect."""

    start: int
    complete_count: int
    batches: tuple[StateBatch, ...]
    tickets: tuple[int, ...]
    """The acknowledgements in this write."""


class SharePartition:
    """The records in flight. start: the offset at which the group begins; batches: the share coordinator's state from
    there on."""

    def __init__(self, start: int, batches: Iterable[StateBatch] = ()) -> None:
        self.start = start
        self._runs: list[Run] = []
        """The offsets from `start` to `end`, in order and without holes."""
        self._deadlines: list[int] = []
        """A heap with the deadlines of all acquired runs, and of some that are no longer acquired."""
        self._queued: list[StateBatch] = []
        self._tickets: list[int] = []
        self._last_ticket = 0
        self._writing: dict[int, list[Span]] = {}
        """By ticket: the spans of the acknowledgements that are not written yet."""
        self._is_writing = False
        for batch in batches:
            if batch.last >= start:
                self._load(batch)
        self._settle()

    def _load(self, batch: StateBatch) -> None:
        first = max(batch.first, self.start)
        if first > self.end + 1:  # offsets without a stored state: they were acquired, but not acknowledged
            self._runs.append(Run(self.end + 1, first - 1, AVAILABLE, 0, first - self.end - 1))
        size = batch.last - first + 1
        self._runs.append(Run(first, batch.last, DeliveryState(batch.state), batch.deliveries, size))

    # ---- questions

    @property
    def end(self) -> int:
        """The last offset in flight; `start - 1` if there is none."""
        return self._runs[-1].last if self._runs else self.start - 1

    @property
    def in_flight(self) -> int:
        """The number of offsets in flight."""
        return self.end - self.start + 1

    @property
    def is_at_rest(self) -> bool:
        """Whether everything is written, including dead letters."""
        return not self._is_writing and not self._queued and not self.letters()

    def next_offset(self, limits: Limits) -> int | None:
        """The offset where records that can be acquired now begin; None if there are none."""
        for run in self._runs:
            if run.state is AVAILABLE:
                return run.first
        return self.end + 1 if self.in_flight < limits.max_in_flight else None

    def last_within_reach(self, offset: int, max_records: int, limits: Limits) -> int:
        """The last record that a fetch of at most `max_records` can acquire, if it reads from `offset` on and the log
        contains every offset."""
        left = max_records
        for run in self._runs[self._at(offset) :]:
            if run.state is AVAILABLE:
                first = max(run.first, offset)
                if run.last - first + 1 >= left:
                    return first + left - 1
                left -= run.last - first + 1
        new = max(min(left, limits.max_in_flight - self.in_flight), 0)
        return max(self.end + new, offset)

    def deadline_ms(self) -> int | None:
        """The time at which `expire` is due, or an earlier time; None if nothing is acquired."""
        return self._deadlines[0] if self._deadlines else None

    def states(self) -> Iterator[tuple[int, DeliveryState, int, str | None]]:
        """For each offset in flight: the offset, its state, its deliveries, and the member that has acquired it."""
        for run in self._runs:
            for offset in range(run.first, run.last + 1):
                yield offset, run.state, run.deliveries, run.member_id

    # ---- acquiring

    def acquire(
        self,
        member_id: str,
        batches: Sequence[Span],
        wish: Wish,
        limits: Limits,
        now_ms: int,
        aborted: Sequence[Span] = (),
    ) -> list[Acquired]:
        """Acquire records of the `batches` that were read at `next_offset`. Those in `aborted` are archived."""
        if not batches:
            return []
        self._extend(batches, wish, limits)
        for span in aborted:
            self._archive(span)
        found: list[Acquired] = []
        left = wish.max_records
        ends = [last for _, last in batches]
        for run in list(self._runs[self._at(batches[0][0]) :]):
            if run.first > ends[-1] or left <= 0:
                break
            if run.state is not AVAILABLE:
                continue
            most, is_poison = self._most(run, limits)
            if is_poison and found:
                break
            last = min(run.first + most - 1, ends[-1], run.last)
            if wish.is_exact:
                last = min(last, run.first + left - 1)
            elif not is_poison:
                last = min(last, ends[min(bisect_left(ends, run.first + left - 1), len(ends) - 1)])
            left -= last - run.first + 1
            found += self._hold(run, last, ends, member_id, wish, now_ms + limits.lock_ms)
            if is_poison:
                break
        self._drop_unused(found)
        self._settle()
        return found

    def _extend(self, batches: Sequence[Span], wish: Wish, limits: Limits) -> None:
        """Take offsets that were never delivered into flight: as many whole batches as the limits allow."""
        first = end = self.end + 1
        most = min(limits.max_in_flight - self.in_flight, wish.max_records)
        for _, last in batches:
            if last >= end and end - first < most:
                end = last + 1
        if end > first:
            self._runs.append(Run(first, end - 1, AVAILABLE, 0, end - first))

    def _drop_unused(self, found: list[Acquired]) -> None:
        """Remove the offsets that were taken into flight, but then not acquired."""
        while self._runs and self._runs[-1].state is AVAILABLE and not self._runs[-1].deliveries:
            run = self._runs[-1]
            if run.last <= self._known_end(found):
                return
            self._runs.pop()

    def _known_end(self, found: list[Acquired]) -> int:
        """The last offset that was ever acquired or archived."""
        known = found[-1].last if found else self.start - 1
        return next((run.last for run in reversed(self._runs) if run.state is not AVAILABLE or run.deliveries), known)

    @staticmethod
    def _most(run: Run, limits: Limits) -> tuple[int, bool]:
        """The maximum number of records of a run that may be delivered together, and whether the number is reduced
        because the run was delivered so often that one of its records may be bad."""
        from_deliveries = -(-limits.max_deliveries // 2)
        if run.deliveries < from_deliveries:
            return run.size, False
        if run.deliveries >= limits.max_deliveries - 1:
            return 1, True
        return max(run.batch_size >> (run.deliveries - from_deliveries + 1), 1), True

    def _hold(
        self, run: Run, last: int, ends: Sequence[int], member_id: str, wish: Wish, deadline_ms: int
    ) -> Iterator[Acquired]:
        """Acquire a run up to an offset, in ranges that end with a batch of the log."""
        if last < run.last:
            self._runs.insert(self._runs.index(run) + 1, run.cut_at(last + 1))
        heappush(self._deadlines, deadline_ms)
        while True:
            at = bisect_left(ends, run.first + max(wish.batch_size, 1) - 1)
            cut = ends[at] if at < len(ends) and not wish.is_exact else run.last
            rest = run.cut_at(cut + 1) if cut < run.last else None
            if rest is not None:
                self._runs.insert(self._runs.index(run) + 1, rest)
            run.acquire(member_id, deadline_ms)
            yield Acquired(run.first, run.last, run.deliveries)
            if rest is None:
                return
            run = rest

    def _archive(self, span: Span) -> None:
        for run in self._split(*span):
            if run.state is AVAILABLE:
                run.become(ARCHIVED)

    # ---- acknowledging

    def acknowledge(self, member_id: str, told: Sequence[Acknowledgement], limits: Limits, now_ms: int) -> int | None:
        """Mark the records that a member acknowledges: all of them, or none. Returns the ticket of the acknowledgement,
        as in `Write.tickets`; None if nothing has to be written.

        Raises INVALID_REQUEST for records that are not in flight, INVALID_RECORD_STATE for records that the member
        has not acquired, or no longer holds.
        """
        spans = list(self._spans(told))
        for first, last, _ in spans:
            self._check_held(member_id, first, last)
        changed: list[Span] = []
        for first, last, kind in spans:
            for run in self._split(first, last):
                if kind == AcknowledgeType.RENEW:
                    run.renew(now_ms + limits.lock_ms)
                    heappush(self._deadlines, run.deadline_ms)
                    continue
                run.wait(_state_after(kind, run.deliveries, limits), is_rejected=kind == AcknowledgeType.REJECT)
                assert run.pending is not None, "it was just set"
                self._queued.append(StateBatch(run.first, run.last, run.pending, run.deliveries))
                changed.append((run.first, run.last))
        if not changed:
            return None
        self._last_ticket += 1
        self._tickets.append(self._last_ticket)
        self._writing[self._last_ticket] = changed
        return self._last_ticket

    def _spans(self, told: Sequence[Acknowledgement]) -> Iterator[tuple[int, int, int]]:
        """First offset, last offset and type of each span, from `start` on."""
        before = self.start - 1
        for first, last, types in told:
            if last < self.start:
                continue
            if first > self.end:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "Batch record not found. The first offset in request is past acquired records.",
                )
            if last > self.end:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "Batch record not found. The last offset in request is past acquired records.",
                )
            if first <= before and before >= self.start:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, f"The record {first} is acknowledged twice.")
            before = last
            begin = max(first, self.start)
            if len(types) == 1:
                yield begin, last, types[0]
                continue
            for offset in range(begin, last + 1):
                kind = types[offset - first]
                if offset == last or types[offset + 1 - first] != kind:
                    yield begin, offset, kind
                    begin = offset + 1

    def _check_held(self, member_id: str, first: int, last: int) -> None:
        for run in self._runs[self._at(first) :]:
            if run.first > last:
                return
            if run.state is not ACQUIRED or run.pending is not None:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD_STATE,
                    "The batch cannot be acknowledged. The batch is not in the acquired state.",
                )
            if run.member_id != member_id:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "Member is not the owner of batch record")

    def release(self, member_id: str, limits: Limits) -> bool:
        """Release the records of a member whose session has ended. Returns whether there were any."""
        return self._give_up([run for run in self._runs if run.member_id == member_id], limits)

    def expire(self, limits: Limits, now_ms: int) -> bool:
        """Release the records whose locks have ended. Returns whether there were any."""
        if not self._deadlines or self._deadlines[0] > now_ms:
            return False
        while self._deadlines and self._deadlines[0] <= now_ms:
            heappop(self._deadlines)
        return self._release_ended(limits, now_ms)

    def _release_ended(self, limits: Limits, now_ms: int) -> bool:
        return self._give_up([run for run in self._runs if run.state is ACQUIRED and run.deadline_ms <= now_ms], limits)

    def _give_up(self, runs: list[Run], limits: Limits) -> bool:
        """Release acquired runs. `written` handles the runs with a pending acknowledgement."""
        changed = False
        for run in runs:
            if run.state is ACQUIRED and run.pending is None:
                run.become(_state_after(AcknowledgeType.RELEASE, run.deliveries, limits))
                self._queued.append(StateBatch(run.first, run.last, run.state, run.deliveries))
                changed = True
        if changed:
            self._settle()
        return changed

    # ---- writing

    def take_write(self) -> Write | None:
        """Begin the next write; None if a write is in progress, or nothing is queued."""
        if self._is_writing or not self._queued:
            return None
        self._is_writing = True
        batches, self._queued = tuple(self._queued), []
        tickets, self._tickets = tuple(self._tickets), []
        complete = sum(run.size for run in self._runs if run.state in TERMINAL or run.pending in TERMINAL)
        return Write(self.start, complete, batches, tickets)

    def written(self, write: Write, limits: Limits, now_ms: int, *, done: bool) -> None:
        """End a write. If it succeeded (`done`), its acknowledgements take effect. Otherwise the records stay acquired,
        unless their locks have ended."""
        self._is_writing = False
        for ticket in write.tickets:
            for first, last in self._writing.pop(ticket):
                for run in self._split(first, last):
                    if run.pending is None:
                        continue
                    if done:
                        run.become(run.pending)
                    else:
                        run.wait(None)
        if not done:
            self._release_ended(limits, now_ms)
        self._settle()

    # ---- dead letters

    def letters(self) -> list[Letter]:
        """The records that are archived once their dead letters are written."""
        return [
            Letter(run.first, run.last, run.deliveries, run.is_rejected) for run in self._runs if run.state is ARCHIVING
        ]

    def letters_written(self, letters: Iterable[Letter]) -> None:
        """Archive records whose dead letters are written."""
        for letter in letters:
            for run in self._split(letter.first, letter.last):
                if run.state is ARCHIVING:
                    run.become(ARCHIVED)
                    self._queued.append(StateBatch(run.first, run.last, run.state, run.deliveries))
        self._settle()

    # ---- the log

    def cut_start(self, log_start: int) -> bool:
        """Archive the available records below this offset, because the log has been deleted there. Returns whether
        anything changed."""
        if log_start <= self.start:
            return False
        if log_start > self.end + 1 and not any(run.state in (ACQUIRED, ARCHIVING) for run in self._runs):
            self._runs.clear()
            self.start = log_start
            return True
        changed = False
        for run in self._split(self.start, log_start - 1):
            if run.state is AVAILABLE:
                run.become(ARCHIVED)
                changed = True
        self._settle()
        return changed

    # ---- runs

    def _at(self, offset: int) -> int:
        """The index of the run with this offset, or of the first run after it."""
        return bisect_left(self._runs, offset, key=_last)

    def _split(self, first: int, last: int) -> list[Run]:
        """The runs with exactly these offsets, as far as they are in flight; splits runs at the edges."""
        at = self._at(first)
        found = []
        while at < len(self._runs) and self._runs[at].first <= last:
            run = self._runs[at]
            if run.first < first:
                self._runs.insert(at + 1, run.cut_at(first))
                at += 1
                continue
            if run.last > last:
                self._runs.insert(at + 1, run.cut_at(last + 1))
            found.append(run)
            at += 1
        return found

    def _settle(self) -> None:
        """Join equal neighbours, and move the start past offsets that are acknowledged or archived."""
        joined: list[Run] = []
        for run in self._runs:
            if not joined and run.state in TERMINAL:
                self.start = run.last + 1
            elif not joined or not joined[-1].takes(run):
                joined.append(run)
        self._runs = joined


def _last(run: Run) -> int:
    return run.last


def _state_after(kind: int, deliveries: int, limits: Limits) -> DeliveryState:
    if kind == AcknowledgeType.ACCEPT:
        return ACKNOWLEDGED
    if kind == AcknowledgeType.RELEASE and deliveries < limits.max_deliveries:
        return AVAILABLE
    return ARCHIVING if limits.has_letters and kind != AcknowledgeType.GAP else ARCHIVED
