"""The history of a run: the requests that clients sent, and the responses that they received.

A record is identified by its producer and a sequence number per producer and partition, combined into one integer, its
key. Arrays save memory: a run of twenty minutes has millions of records.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.incarnations import Incarnations
from chaos.registers import Decision, Register

PRODUCER_SHIFT = 40
UNKNOWN = -1
"""The offset of a record without an acknowledgement, which may or may not be stored."""


SOMEWHERE = -2
"""The offset of a record that was acknowledged as a duplicate, without an offset."""


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


def key_of(producer: int, number: int) -> int:
    return producer << PRODUCER_SHIFT | number


def name_of(key: int) -> str:
    """A key as text for people."""
    return f"record {key & ((1 << PRODUCER_SHIFT) - 1)} of producer {key >> PRODUCER_SHIFT}"


@dataclass(slots=True)
class Found:
    """Offsets and keys of records, in the order in which they were read."""

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
    """A latest offset that the leader of `epoch` returned, with the times of the request and of the response."""

    began_s: float
    ended_s: float
    epoch: int
    offset: int


class Commit(NamedTuple):
    """An offset commit of a group; `acked_s` is infinite without an acknowledgement."""

    began_s: float
    acked_s: float
    offset: int


class Fetched(NamedTuple):
    """A committed offset, fetched while there were no faults; -1 if none was committed."""

    began_s: float
    offset: int


class Write(NamedTuple):
    """A record of a transaction."""

    place: Place
    key: int


@dataclass
class Transaction:
    """The records of a transaction. `committed` is None if the outcome is unknown."""

    writes: list[Write] = field(default_factory=list)
    committed: bool | None = None


class Delivery(NamedTuple):
    """A record that a share consumer got: when its poll began, and whether that was the last worker of all."""

    began_s: float
    offset: int
    is_last: bool


@dataclass
class Shared:
    """The observations of the workers of a share group, by partition."""

    stored: dict[Place, set[int]] = field(default_factory=dict)
    """The offsets of the records that were acknowledged to their producer."""
    delivered: dict[Place, list[Delivery]] = field(default_factory=dict)
    accepted: dict[Place, dict[int, float]] = field(default_factory=dict)
    """When the acceptance of each offset was confirmed."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def deliver(self, place: Place, delivery: Delivery) -> None:
        with self.lock:
            self.delivered.setdefault(place, []).append(delivery)

    def accept(self, place: Place, offsets: Iterable[int], now_s: float) -> None:
        """The broker has confirmed that these records are accepted."""
        with self.lock:
            known = self.accepted.setdefault(place, {})
            for offset in offsets:
                known.setdefault(offset, now_s)

    def left(self, place: Place) -> set[int]:
        """The stored records of a partition that were not delivered yet. Those whose acceptance got no answer may be
        accepted all the same, so nobody waits for that."""
        with self.lock:
            return self.stored.get(place, set()) - {delivery.offset for delivery in self.delivered.get(place, ())}


@dataclass
class History:
    """Everything that clients observed. `lock` guards it, because clients run in several threads."""

    acked: dict[tuple[Place, int], array[int]] = field(default_factory=dict)
    """(place, producer) -> for each sequence number the acknowledged offset, SOMEWHERE or UNKNOWN."""
    reads: dict[tuple[Place, str], Found] = field(default_factory=dict)
    """(place, reader) -> the records that it read, with repetitions where its position was reset."""
    final: dict[Place, Found] = field(default_factory=dict)
    """All committed records at the end."""
    incarnations: dict[Place, Incarnations] = field(default_factory=dict)
    """Producer ids and epochs of the batches."""
    latest: dict[Place, list[Latest]] = field(default_factory=dict)
    commits: dict[tuple[str, Place], list[Commit]] = field(default_factory=dict)
    fetched: dict[tuple[str, Place], list[Fetched]] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    shared: Shared = field(default_factory=Shared)
    rights: Register = field(default_factory=Register)
    """Whether the spare user is denied."""
    passwords: Register = field(default_factory=Register)
    """The password of the guest."""
    incidents: list[str] = field(default_factory=list)
    """Failures of clients or nodes that no fault explains: each is a violation."""
    falls: list[str] = field(default_factory=list)
    """Fatal errors of librdkafka producers, which were replaced."""
    on_incident: Callable[[str], None] = lambda text: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ack(self, place: Place, producer: int, number: int, offset: int) -> None:
        """A record was acknowledged at an offset, or its producer gave up (UNKNOWN)."""
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

    def decided_right(self, node_id: int, began_s: float, value: str, is_it: bool) -> None:
        """A node has just responded as if the user's right had this value (`is_it`), or as if it had another value."""
        self.rights.decisions.append(Decision(node_id, began_s, time.monotonic(), value, is_it))

    def decided_password(self, node_id: int, began_s: float, password: str, is_in: bool) -> None:
        """A node has just accepted this password (`is_in`), or refused it."""
        self.passwords.decisions.append(Decision(node_id, began_s, time.monotonic(), password, is_in))

    def incident(self, text: str) -> None:
        with self.lock:
            self.incidents.append(text)
        self.on_incident(text)

    def fall(self, text: str) -> None:
        """A producer has a fatal error."""
        with self.lock:
            self.falls.append(text)
        self.on_incident(text)

    def has_acknowledged(self, wanted: Iterable[tuple[Place, int]]) -> bool:
        """Whether each of these producers has an acknowledged record in its partition."""
        with self.lock:
            return all(any(offset != UNKNOWN for offset in self.acked.get(one, ())) for one in wanted)

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged records."""
        with self.lock:
            return sum(len(offsets) - offsets.count(UNKNOWN) for offsets in self.acked.values())
