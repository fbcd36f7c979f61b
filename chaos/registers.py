"""Registers: values by which the nodes of a cluster make decisions. A register changes step by step, and each node
applies the changes at a different time.

A change has a number. Once a node has shown that it has applied a change, it must never again decide by an older value,
not even after a crash. It may already have applied newer values that a client has requested.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Change(NamedTuple):
    """A value, and when a client first requested it."""

    asked_s: float
    value: str


class Known(NamedTuple):
    """A node's response, and the time of its arrival: the node has applied the change with this number."""

    answered_s: float
    number: int


class Decision(NamedTuple):
    """A node's response, which shows whether it decided by this value."""

    node_id: int
    began_s: float
    ended_s: float
    value: str
    is_it: bool


@dataclass
class Register:
    """The changes of one value, and the decisions of nodes by this value. All nodes have applied `changes[0]`."""

    changes: list[Change] = field(default_factory=list)
    known: dict[int, list[Known]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    def change(self, asked_s: float, value: str) -> int:
        """Add a change. Returns its number."""
        self.changes.append(Change(asked_s, value))
        return len(self.changes) - 1

    def know(self, node_id: int, answered_s: float, number: int) -> None:
        self.known.setdefault(node_id, []).append(Known(answered_s, number))

    def wrong(self) -> Iterator[tuple[Decision, list[str]]]:
        """The decisions that no value explains that the node may have had; each with these possible values."""
        for node_id in sorted({decision.node_id for decision in self.decisions}):
            known = sorted(self.known.get(node_id, []))
            at, first = 0, 0
            for decision in sorted(one for one in self.decisions if one.node_id == node_id):
                while at < len(known) and known[at].answered_s < decision.began_s:
                    first = max(first, known[at].number)
                    at += 1
                values = [one.value for one in self.changes[first:] if one.asked_s < decision.ended_s]
                if not any((value == decision.value) == decision.is_it for value in values):
                    yield decision, values
