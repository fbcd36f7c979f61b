"""What clients did and were told, as it is written down while the cluster is in trouble.

A record is known by its producer and that producer's number in its partition, which rises by one: as one integer, its
key. Everything is kept in arrays: a run of twenty minutes has millions of records.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.incarnations import Incarnations

PRODUCER_SHIFT = 40
UNKNOWN = -1
"""The offset of a record that nobody acknowledged, and that may be there or not."""


SOMEWHERE = -2
"""The offset of a record that was acknowledged as one that is there already."""


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


def key_of(producer: int, number: int) -> int:
    return producer << PRODUCER_SHIFT | number


def name_of(key: int) -> str:
    """A key, for people."""
    return f"record {key & ((1 << PRODUCER_SHIFT) - 1)} of producer {key >> PRODUCER_SHIFT}"


@dataclass(slots=True)
class Found:
    """Offsets and the keys there, in the order in which they were read."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    keys: array[int] = field(default_factory=lambda: array("q"))

    def add(self, offset: int, key: int) -> None:
        self.offsets.append(offset)
        self.keys.append(key)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.offsets, self.keys, strict=True)

    def __len__(self) -> int:
        return len(self.offsets)


class Latest(NamedTuple):
    """A leader of `epoch` answered, between two moments, that the next record will have this offset."""

    began_s: float
    ended_s: float
    epoch: int
    offset: int


class Commit(NamedTuple):
    """A group asked to commit an offset; `acked_s` is infinite where nobody said that it was done."""

    began_s: float
    acked_s: float
    offset: int


class Fetched(NamedTuple):
    """A group's commit, as the coordinator told it while nothing was in trouble; -1 for none."""

    began_s: float
    offset: int


class Write(NamedTuple):
    """A record of a transaction."""

    place: Place
    key: int


@dataclass
class Transaction:
    """`committed`: None where nobody was told how it ended."""

    writes: list[Write] = field(default_factory=list)
    committed: bool | None = None


@dataclass
class History:
    """`lock` is for those who write from several threads."""

    acked: dict[tuple[Place, int], array[int]] = field(default_factory=dict)
    """(place, producer) -> by number, the offset that was acknowledged, SOMEWHERE or UNKNOWN."""
    reads: dict[tuple[Place, str], Found] = field(default_factory=dict)
    """(place, reader) -> what it was given, again and again where it went back."""
    final: dict[Place, Found] = field(default_factory=dict)
    """Everything that is there in the end, as committed."""
    incarnations: dict[Place, Incarnations] = field(default_factory=dict)
    """Whose batches they are."""
    latest: dict[Place, list[Latest]] = field(default_factory=dict)
    commits: dict[tuple[str, Place], list[Commit]] = field(default_factory=dict)
    fetched: dict[tuple[str, Place], list[Fetched]] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    incidents: list[str] = field(default_factory=list)
    """What a client or a node did that it must not, whatever happens: each is a violation."""
    on_incident: Callable[[str], None] = lambda text: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ack(self, place: Place, producer: int, number: int, offset: int) -> None:
        """A record was acknowledged at an offset, or given up (UNKNOWN)."""
        with self.lock:
            offsets = self.acked.setdefault((place, producer), array("q"))
            if number >= len(offsets):
                offsets.extend([UNKNOWN] * (number + 1 - len(offsets)))
            offsets[number] = offset

    def read(self, place: Place, reader: str, offset: int, key: int) -> None:
        with self.lock:
            self.reads.setdefault((place, reader), Found()).add(offset, key)

    def commit(self, group: str, place: Place, commit: Commit) -> None:
        with self.lock:
            self.commits.setdefault((group, place), []).append(commit)

    def incident(self, text: str) -> None:
        with self.lock:
            self.incidents.append(text)
        self.on_incident(text)

    @property
    def acknowledged(self) -> int:
        """Records that were acknowledged."""
        with self.lock:
            return sum(len(offsets) - offsets.count(UNKNOWN) for offsets in self.acked.values())
