"""One step of the group machine: its time, and the records and answers so far."""

from __future__ import annotations

from typing import Any

from kpybroker.machine.contract import Moment, Outcome, Stored


class Step:
    """Collects the records and answers of one `decide`.

    Timers use `now_ms`, the steady clock; records and committed offsets are stamped with `wall_ms`.
    """

    __slots__ = ("answers", "now_ms", "records", "size_bytes", "wall_ms")

    def __init__(self, now: Moment) -> None:
        self.now_ms, self.wall_ms = now
        self.records: list[Stored] = []
        self.answers: list[tuple[Any, Any]] = []
        self.size_bytes = 0
        """The size of the records, which must fit into one batch."""

    def write(self, record: Stored) -> None:
        record.stamp(self.wall_ms)
        self.size_bytes += record_bytes(record)
        self.records.append(record)

    def answer(self, ticket: Any, answer: Any) -> None:
        """Answer a ticket, possibly of an earlier command; None for no ticket."""
        if ticket is not None:
            self.answers.append((ticket, answer))

    def outcome(self) -> Outcome:
        return Outcome(records=self.records, answers=self.answers)


def record_bytes(record: Stored) -> int:
    """An upper bound for the size of a record in a batch."""
    return _OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")


_OVERHEAD_BYTES = 24
"""The longest encoding of length, attributes, deltas and the lengths of key and value."""
