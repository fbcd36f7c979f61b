"""Collects the records and results of one step of the group machine."""

from __future__ import annotations

from typing import Any

from kpybroker.machine.contract import Moment, Outcome, Stored


class Step:
    """The time of one `decide`, and its records and results so far.

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
        """Set the result for a ticket, possibly of an earlier command. Does nothing if the ticket is None."""
        if ticket is not None:
            self.answers.append((ticket, answer))

    def outcome(self) -> Outcome:
        return Outcome(records=self.records, answers=self.answers)


def record_bytes(record: Stored) -> int:
    """An upper bound for the size of a record in a batch."""
    return _OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")


_OVERHEAD_BYTES = 24
"""The most bytes of an encoded record besides key and value: length, attributes, deltas and the two lengths."""
