"""The interface of a Machine, which keeps replicated state as a log plus pure decisions.

A `Machine` decides on commands (`decide`), changes its state (`apply`) and names its next deadline (`deadline_ms`). The
`Runner` makes each command one atomic step: decide, append, apply. It returns the answers (the results of commands)
once the records on which they depend are committed. The controller, the groups, the transactions and the share groups
differ only in their machine and their log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from kpybroker.wire.records.markers import Marker

Answer = Any
"""The result of a command: a value, or a `KafkaError` that is raised in the caller."""


class Stored:
    """One record of a state log.

    `transaction` is None, or (producer id, epoch) of a record that takes effect once the transaction commits, or the
    Marker that ends a transaction; its record has no key. Other control records never reach a machine. `offset` is -1
    until the log has assigned one. For the controller, `message` is always the metadata record, and the quorum
    serializes it into `value` if `value` is None. Other machines may keep the parsed value in `message`, so that they
    need not parse a record that they have just written; in replayed records, it is None.
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

    def serialized(self, frame: Callable[[Any], bytes]) -> bytes:
        """The value. If it is None, `frame` builds it from the message."""
        if self.value is None:
            self.value = frame(self.message)
        return self.value

    def appended_at(self, offset: int) -> None:
        """Note the offset that the log has assigned."""
        self.offset = offset

    def stamp(self, timestamp_ms: int) -> None:
        """Set the record's time, in milliseconds by the wall clock."""
        self.timestamp_ms = timestamp_ms

    def keep(self, message: Any) -> None:
        """Keep the parsed value, so that the machine need not parse the record."""
        self.message = message

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stored):
            return NotImplemented
        return self._fields() == other._fields()

    def _fields(self) -> tuple[Any, ...]:
        return self.key, self.value, self.timestamp_ms, self.offset, self.message, self.transaction

    __hash__ = None  # type: ignore[assignment]  # the log and the machines fill it in

    def __repr__(self) -> str:
        return f"Stored({self.key!r}, {self.value!r}, {self.timestamp_ms}, {self.offset}, {self.message!r})"


class Ticket:
    """Represents the caller of a command. A machine may keep it and answer it, once, in the Outcome of a later command.

    A ticket is decided when a machine has answered it, and settled when the caller has received the answer.
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
        """Whether no machine has answered the ticket yet and the caller still waits."""
        return not self._is_decided and not self.is_abandoned

    def wait(self, done: Callable[[Answer], None]) -> None:
        """Call `done` with the answer when it is settled."""
        self._done = done

    def decide(self) -> None:
        """Record that the machine has answered this ticket."""
        assert not self._is_decided, "a ticket was answered twice"
        self._is_decided = True

    def hold(self, answer: Answer, expire: Callable[[Ticket], None]) -> None:
        """Keep the answer until its records have committed. After the timeout of the ticket, if any, call `expire`."""
        self.answer = answer
        if self._timeout_ms > 0:
            self._timer = asyncio.get_running_loop().call_later(self._timeout_ms / 1000, expire, self)

    def settle(self, answer: Answer) -> None:
        """Pass this answer to the caller, unless the caller has already received one."""
        if self.is_settled:
            return
        self.answer = answer
        self.is_settled = self._is_decided = True
        self._cancel_timer()
        if self._done is not None:
            self._done(answer)

    def void(self) -> None:
        """Called when the decision failed. The machine may have kept the ticket; a later answer is ignored."""
        self._is_decided, self.is_abandoned = False, True

    def abandon(self) -> None:
        """Record that the caller no longer waits."""
        self.is_abandoned = True
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Outcome:
    """The result of a decision: the records to write, and the answers to return after their commit.

    The records are appended together or not at all. The answers may be for tickets of other commands.
    """

    __slots__ = ("answers", "records")

    def __init__(self, records: list[Stored] | None = None, answers: list[tuple[Ticket, Answer]] | None = None) -> None:
        self.records = [] if records is None else records
        self.answers = [] if answers is None else answers


class Tick:
    """The command of the timer. It is run once after a replay, and then whenever `deadline_ms` is reached."""

    __slots__ = ()


class Moment(NamedTuple):
    """The time of a step on two clocks, in milliseconds.

    Timeouts use `steady_ms`, which never goes backward and has no meaning in another process. Stored and returned times
    use `wall_ms`, milliseconds since the epoch, because they must have a meaning elsewhere; the wall clock may be
    changed at any time.
    """

    steady_ms: int
    wall_ms: int


class Machine(Protocol):
    """Replicated state. Its methods never wait, read no clock, and use only random numbers that are passed to them."""

    def decide(self, ticket: Ticket, command: Any, now: Moment) -> Outcome:
        """Decide on a command without changing hard state. A KafkaError refuses the command.

        Any other exception is a bug. If the command has a caller, the caller receives UNKNOWN_SERVER_ERROR. Other
        callers are not affected, because a decision changes no state.
        """

    def apply(self, record: Stored) -> None:
        """Change hard state. Nothing else changes it. `apply` is called for each record in order, live and during a
        replay."""

    def deadline_ms(self) -> int | None:
        """The steady time of the next `Tick`, or None. Called after each step, so it must be cheap."""


class StateLog(Protocol):
    """The log of a Runner: the metadata log, or the log of a partition.

    `append` may write the records at once or queue them. `committed` may reach the new end during `append` (one voter,
    page cache) or later (fsync, followers); each time it advances, the callbacks are called.
    """

    @property
    def end(self) -> int:
        """The offset of the next record."""

    @property
    def committed(self) -> int:
        """The offset below which all records are committed."""

    def append(self, records: Sequence[Stored]) -> int:
        """Append all records or none, at consecutive offsets. Returns the new end. Raises KafkaError, or Damage if the
        log is permanently offline."""

    def on_committed(self, callback: Callable[[], None]) -> None: ...

    def replay(self) -> AsyncIterator[Sequence[Stored]]:
        """All records from the snapshot or the log start to the end, in pieces so small that they do not block the
        event loop."""
