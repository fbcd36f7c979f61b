"""Machines: replicated state as a log and a pure decision function, run by one Runner.

A `Machine` reads its state (`decide`), changes it (`apply`), and says when its next timer is due (`deadline_ms`). The
`Runner` executes each command as one atomic step: decide, append, apply. It releases the answers when everything that
they depend on has committed. The controller, groups and transactions differ only in their machine and their log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from kpybroker.wire.records.markers import Marker

Answer = Any
"""The result of a command: a value, or a `KafkaError` that is raised to the caller."""


class Stored:
    """One record of a state log.

    `transaction` is None; or (producer id, epoch): the record takes effect when that transaction commits; or the Marker
    that ends one, and then there is no key. Other control records do not reach a machine. `offset` is -1 until the log
    has assigned one. For the controller, `message` is always the metadata record, and the quorum encodes it into
    `value` if that is None. For other machines, `message` is the decoded value of a record that was just written, which
    spares them parsing it; replayed records have none.
    """

    __slots__ = ("key", "message", "offset", "timestamp_ms", "transaction", "value")

    def __init__(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int = -1,
        offset: int = -1,
        message: Any = None,
        transaction: tuple[int, int] | Marker | None = None,
    ) -> None:
        self.key = key
        self.value = value
        self.timestamp_ms = timestamp_ms
        self.offset = offset
        self.message = message
        self.transaction = transaction

    def stamp(self, timestamp_ms: int) -> None:
        """Set the record's time, in milliseconds of wall clock."""
        self.timestamp_ms = timestamp_ms

    def keep(self, message: Any) -> None:
        """Remember what the value means, for a machine that would have to parse it."""
        self.message = message

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stored):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # the log and the machines fill it in

    def __repr__(self) -> str:
        return f"Stored({self.key!r}, {self.value!r}, {self.timestamp_ms}, {self.offset}, {self.message!r})"


class Ticket:
    """Stands for one caller. A machine may keep it and answer it in the Outcome of a later command, but only once.

    A ticket is decided when a machine has answered it, and settled when the caller has got the answer.
    """

    __slots__ = ("_done", "_is_decided", "_timeout_ms", "_timer", "answer", "is_abandoned", "is_settled")

    def __init__(self, timeout_ms: int) -> None:
        self.answer: Answer = None
        self.is_abandoned = False
        self.is_settled = False
        self._timeout_ms = timeout_ms
        self._is_decided = False
        self._done: Callable[[Answer], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        """No machine has answered it, and a caller still waits."""
        return not self._is_decided and not self.is_abandoned

    def wait(self, done: Callable[[Answer], None]) -> None:
        """Call `done` with the answer when it is settled."""
        self._done = done

    def decide(self) -> None:
        """The machine has answered this ticket."""
        assert not self._is_decided, "a ticket was answered twice"
        self._is_decided = True

    def hold(self, answer: Answer, expire: Callable[[Ticket], None]) -> None:
        """Keep the answer until its records have committed. After the timeout of the ticket, if any, call `expire`."""
        self.answer = answer
        if self._timeout_ms > 0:
            self._timer = asyncio.get_running_loop().call_later(self._timeout_ms / 1000, expire, self)

    def settle(self, answer: Answer) -> None:
        """Give the caller this answer, unless it already has one."""
        if self.is_settled:
            return
        self.answer = answer
        self.is_settled = self._is_decided = True
        self._cancel_timer()
        if self._done is not None:
            self._done(answer)

    def void(self) -> None:
        """The decision failed. The machine may have kept the ticket, and may answer it, without effect."""
        self._is_decided, self.is_abandoned = False, True

    def abandon(self) -> None:
        """The caller no longer waits."""
        self.is_abandoned = True
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Outcome:
    """The result of a decision: the records to write, and the answers that follow their commit.

    The records are appended together or not at all. The answers may be for other tickets than the one that asked.
    """

    __slots__ = ("answers", "records")

    def __init__(self, records: list[Stored] | None = None, answers: list[tuple[Ticket, Answer]] | None = None) -> None:
        self.records = [] if records is None else records
        self.answers = [] if answers is None else answers


class Tick:
    """The command for the passing of time: given once after a replay, and then whenever `deadline_ms` has come."""

    __slots__ = ()


class Moment(NamedTuple):
    """The time of a step by two clocks, in milliseconds.

    Timeouts use `steady_ms`, which never goes backward and cannot be compared with another process's. Times that are
    stored or sent use `wall_ms`, since the epoch, which may jump at any time.
    """

    steady_ms: int
    wall_ms: int


class Machine(Protocol):
    """Replicated state. Nothing in here waits, reads a clock, or rolls dice other than those it was given."""

    def decide(self, ticket: Ticket, command: Any, now: Moment) -> Outcome:
        """Look, and say what shall be. Hard state stays as it is; raising KafkaError refuses the command.

        Whatever else is raised is a bug. Where somebody asked, it costs the asker UNKNOWN_SERVER_ERROR and nobody else
        anything: what has been decided is in the records alone.
        """

    def apply(self, record: Stored) -> None:
        """The only place where hard state changes: called for each record in order, at replay and live alike."""

    def deadline_ms(self) -> int | None:
        """The steady time at which a `Tick` is wanted, or None. Asked after each step, so it must be cheap."""


class StateLog(Protocol):
    """A log that commits, as a Runner sees it: the quorum's, or a partition's.

    `append` may write at once or queue; `committed` may reach the new end inside `append` (one voter, page cache) or
    later (fsync, followers), and each time it moves the callbacks are called.
    """

    @property
    def end(self) -> int:
        """The offset the next record gets."""

    @property
    def committed(self) -> int:
        """All records below are committed."""

    def append(self, records: Sequence[Stored]) -> int:
        """Append all or nothing, at consecutive offsets; returns the new end. Raises KafkaError, or Damage: the end."""

    def on_committed(self, callback: Callable[[], None]) -> None: ...

    def replay(self) -> AsyncIterator[Sequence[Stored]]:
        """Every record that counts, snapshot included, from the start to the end: as many at once as others can wait
        for."""
