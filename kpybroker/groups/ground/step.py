"""One step of the group machine while it is being decided: the time it happens at, and what comes of it so far."""

from __future__ import annotations

from typing import Any

from kpybroker.machine.contract import Moment, Outcome, Stored


class Step:
    """Collects the records and answers of one `decide`.

    Timers run on `now_ms`, which is steady; `wall_ms` is what records and committed offsets are stamped with.
    """

    __slots__ = ("answers", "now_ms", "records", "size_bytes", "wall_ms")

    def __init__(self, now: Moment) -> None:
        self.now_ms, self.wall_ms = now
        self.records: list[Stored] = []
        self.answers: list[tuple[Any, Any]] = []
        self.size_bytes = 0
        """Of the records: they have to fit into one batch."""

    def write(self, record: Stored) -> None:
        record.stamp(self.wall_ms)
        self.size_bytes += record_bytes(record)
        self.records.append(record)

    def answer(self, ticket: Any, answer: Any) -> None:
        """Answer a ticket, also one of an earlier command; None for no ticket."""
        if ticket is not None:
            self.answers.append((ticket, answer))

    def outcome(self) -> Outcome:
        return Outcome(records=self.records, answers=self.answers)


def record_bytes(record: Stored) -> int:
    """At most what a record takes in a batch."""
    return _OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")


_OVERHEAD_BYTES = 24
"""Length, attributes, deltas and the lengths of key and value, each at its longest here."""
