"""Machines: replicated state as a log plus a pure decision, and the one Runner that runs them all.

A `Machine` looks (`decide`), changes (`apply`) and says when to be woken (`deadline_ms`). The `Runner` makes each
command one atomic step: decide, append, apply, and lets the answers leave once everything they rest on has committed.
The controller, the groups, the transactions and the share groups differ only in their machine and their log.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.wire.markers import Marker
from kpybroker.world import World

log = logging.getLogger(__name__)

Answer = Any
"""What a command is answered with: a value, or a `KafkaError` that is raised where the command was asked."""

WAITERS_LIMIT = 200_000


class Stored:
    """One record of a state log.

    `transaction` is None; or (producer id, epoch), and the record counts once that has committed; or the Marker that
    ends one, and then there is no key. Other control records never reach a machine. `offset` is -1 until the log has
    given one. For the controller `message` is the metadata record, always, and the quorum frames it into `value` where
    that is still None. Elsewhere `message` is the machine's own, to spare itself reading what it has just written;
    replayed records have none.
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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stored):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # the log and the machines fill it in

    def __repr__(self) -> str:
        return f"Stored({self.key!r}, {self.value!r}, {self.timestamp_ms}, {self.offset}, {self.message!r})"


class Ticket:
    """Stands for one asker. A machine may keep it, and answer it in the Outcome of a later command; once, not twice."""

    __slots__ = ("_abandoned", "_answer", "_done", "_open", "_settled", "_timeout_ms", "_timer")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._open = True  # no machine has answered yet
        self._abandoned = False
        self._answer: Answer = None
        self._settled = False  # the answer may leave
        self._done: Callable[[Answer], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        """No answer has been decided and somebody still waits for one."""
        return self._open and not self._abandoned


class Outcome:
    """What a decision comes to: the records that make it so, and who is told what.

    The records are appended together or not at all. The answers may be for other tickets than the one that asked.
    """

    __slots__ = ("answers", "records")

    def __init__(self, records: list[Stored] | None = None, answers: list[tuple[Ticket, Answer]] | None = None) -> None:
        self.records = [] if records is None else records
        self.answers = [] if answers is None else answers


class Tick:
    """The command that says "it is time": given once after a replay, and then when `deadline_ms` has come."""

    __slots__ = ()


class Machine(Protocol):
    """Replicated state. Nothing in here waits, reads a clock, or rolls dice other than those it was given."""

    def decide(self, ticket: Ticket, command: Any, now_ms: int) -> Outcome:
        """Look, and say what shall be. Hard state stays as it is; raising KafkaError refuses the command.

        Whatever else is raised is a bug. Where somebody asked, it costs the asker UNKNOWN_SERVER_ERROR and nobody else
        anything: what has been decided is in the records alone.
        """

    def apply(self, record: Stored) -> None:
        """The only place where hard state changes: called for each record in order, at replay and live alike."""

    def deadline_ms(self) -> int | None:
        """Wall time at which a `Tick` is wanted, or None. Asked after each step, so it must be cheap."""


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

    def replay(self) -> AsyncIterator[Stored]:
        """Every record that counts, snapshot included, from the start to the end."""


class Runner:
    """Runs one Machine on one StateLog, from `load` to `stop`.

    - loading_code: what commands are refused with until `load` is done.
    - late_code: what a command is refused with whose answer was decided but not committed in time. The state stays.
    - on_bug: called with whatever a machine raised other than KafkaError, but for a decision that somebody asked for;
      the state is then not to be trusted, and the Runner has stopped.
    """

    def __init__(
        self,
        machine: Machine,
        log: StateLog,
        world: World,
        *,
        loading_code: ErrorCode = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        late_code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE,
        on_bug: Callable[[BaseException], None] | None = None,
        waiters_limit: int = WAITERS_LIMIT,
    ) -> None:
        self.machine = machine
        self.log = log
        self.world = world
        self.waiters = 0
        self._late_code = late_code
        self._on_bug = on_bug
        self._waiters_limit = waiters_limit
        self._refusal: KafkaError | None = KafkaError(loading_code)
        self._stopped = False
        self._running = False
        self._held: deque[tuple[int, list[tuple[Ticket, Answer]]]] = deque()  # (committed must reach, answers)
        self._asking: dict[Ticket, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    @property
    def ready(self) -> bool:
        """Loaded and not stopped: commands are taken."""
        return self._refusal is None

    async def load(self) -> None:
        """Replay the log into the machine, then take commands; the first is a Tick. Raises Damage from the log."""
        async for record in self.log.replay():
            if self._stopped:
                return
            self._replay(record)
        if self._stopped:
            return
        self._refusal = None
        self.log.on_committed(self._release)
        self._run(Ticket(0), Tick())

    async def ask(self, command: Any, timeout_ms: int) -> Any:
        """Decide a command and wait for its answer. Raises KafkaError: the machine's refusal, or the Runner's.

        Does not suspend where the answer may leave at once. The timeout covers the wait for the commit; how long a
        ticket may stay parked in the machine is the machine's own business.
        """
        ticket = self._begin(command, timeout_ms)
        if ticket._settled:
            answer = ticket._answer
        else:
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._wait(ticket, partial(_resolve, future))
            try:
                answer = await future
            finally:
                self.abandon(ticket)
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def submit(self, command: Any, timeout_ms: int, done: Callable[[Answer], None]) -> Ticket | None:
        """As `ask`, for those who have no coroutine: `done` is called with the answer, a KafkaError included.

        At once where the answer may leave at once, and then None is returned; else from the loop, unless the ticket
        is abandoned before. Raises KafkaError: the Runner's.
        """
        ticket = self._begin(command, timeout_ms)
        if ticket._settled:
            done(ticket._answer)
            return None
        self._wait(ticket, partial(self._leave_soon, ticket, done))
        return ticket

    def _begin(self, command: Any, timeout_ms: int) -> Ticket:
        if self._refusal is not None:
            raise KafkaError(self._refusal.code, self._refusal.message)
        if self.waiters >= self._waiters_limit:
            raise KafkaError(self._late_code, f"{self.waiters} requests wait already, the limit")
        ticket = Ticket(timeout_ms)
        self._run(ticket, command, is_asked=True)
        return ticket

    def _wait(self, ticket: Ticket, done: Callable[[Answer], None]) -> None:
        ticket._done = done
        self.waiters += 1
        self._asking[ticket] = None

    def _leave_soon(self, ticket: Ticket, done: Callable[[Answer], None], answer: Answer) -> None:
        """Not inside the step that answered: what `done` brings on may ask the machine again."""
        asyncio.get_running_loop().call_soon(self._leave, ticket, done, answer)

    def _leave(self, ticket: Ticket, done: Callable[[Answer], None], answer: Answer) -> None:
        if not ticket._abandoned:
            self.abandon(ticket)
            done(answer)

    def abandon(self, ticket: Ticket) -> None:
        """Nobody waits for the answer any more."""
        if not ticket._abandoned:
            ticket._abandoned = True
            self.waiters -= 1
            del self._asking[ticket]
            if ticket._timer is not None:
                ticket._timer.cancel()
                ticket._timer = None

    def tell(self, command: Any) -> None:
        """Decide a command that nobody waits for; nothing happens while loading or after a stop."""
        if self._refusal is None:
            self._run(Ticket(0), command)

    def stop(self, error: KafkaError) -> None:
        """Refuse everybody who waits, and everybody who comes later. The machine is dropped by whoever stops it."""
        if self._stopped:
            return
        self._stopped = True
        self._refusal = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.clear()
        for ticket in list(self._asking):
            self._settle(ticket, KafkaError(error.code, error.message))

    def _run(self, ticket: Ticket, command: Any, *, is_asked: bool = False) -> None:
        """One atomic step. Not a coroutine: nothing may come between decide and apply."""
        assert not self._running, "a machine was asked from inside its own step"
        self._running = True
        sound = False
        try:
            answers = self._step(ticket, command, is_asked)
            sound = True
        finally:
            self._running = False
            if not sound:
                self._break_off(sys.exception())
        if self._stopped:  # the log ended, or leadership was lost, on the way
            for answered, answer in answers:
                self._settle(answered, answer)
            return
        end = self.log.end
        if self.log.committed >= end and not self._held:
            for answered, answer in answers:
                self._settle(answered, answer)
        elif answers:
            self._hold(end, answers)
            self._release()
        self._arm()

    def _step(self, ticket: Ticket, command: Any, is_asked: bool) -> list[tuple[Ticket, Answer]]:
        try:
            outcome = self.machine.decide(ticket, command, self.world.wall_ms())
        except KafkaError as refusal:
            outcome = Outcome(answers=[(ticket, refusal)])
        except Exception as bug:
            if not is_asked:
                raise
            log.exception("bug in the decision on %s, which is refused", type(command).__name__)
            self._settle(ticket, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(bug)))
            ticket._open, ticket._abandoned = True, True  # the machine may have kept it, and answer it in vain
            return []
        for answered, _ in outcome.answers:
            assert answered._open, "a ticket was answered twice"
            answered._open = False
        records = outcome.records
        if not records:
            return outcome.answers
        try:
            end = self.log.append(records)
        except KafkaError as refusal:
            return [(answered, KafkaError(refusal.code, refusal.message)) for answered, _ in outcome.answers]
        except Damage as damage:
            error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage))
            self.stop(error)
            return [(answered, error) for answered, _ in outcome.answers]
        offset = end - len(records)
        for record in records:
            record.offset = offset
            offset += 1
            self.machine.apply(record)
        return outcome.answers

    def _replay(self, record: Stored) -> None:
        sound = False
        try:
            self.machine.apply(record)
            sound = True
        finally:
            if not sound:
                self._break_off(sys.exception())

    def _break_off(self, bug: BaseException | None) -> None:
        """A machine may refuse; whatever else it raises is a bug, after which its state is a guess."""
        self.stop(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a bug stopped this state machine"))
        if self._on_bug is not None and bug is not None:
            self._on_bug(bug)

    def _hold(self, end: int, answers: list[tuple[Ticket, Answer]]) -> None:
        loop = asyncio.get_running_loop()
        self._held.append((end, answers))
        for ticket, answer in answers:
            ticket._answer = answer
            if ticket._timeout_ms > 0:
                ticket._timer = loop.call_later(ticket._timeout_ms / 1000, self._expire, ticket)

    def _release(self) -> None:
        """The log's commit moved: what rests on committed records only may leave, in the order it was decided."""
        committed = self.log.committed
        while self._held and self._held[0][0] <= committed:
            for ticket, answer in self._held.popleft()[1]:
                self._settle(ticket, answer)

    def _settle(self, ticket: Ticket, answer: Answer) -> None:
        if ticket._settled:
            return
        ticket._answer = answer
        ticket._open = False
        ticket._settled = True
        if ticket._timer is not None:
            ticket._timer.cancel()
            ticket._timer = None
        if ticket._done is not None:
            ticket._done(answer)

    def _expire(self, ticket: Ticket) -> None:
        ticket._timer = None
        self._settle(ticket, KafkaError(self._late_code, "decided, but not committed in time"))

    def _arm(self) -> None:
        """Set the timer for the machine's deadline. A timer set for earlier stays: it looks again when it fires."""
        deadline_ms = self.machine.deadline_ms()
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        delay_ms = max(deadline_ms - self.world.wall_ms(), 1)
        self._timer_ms = deadline_ms
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        deadline_ms = self.machine.deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.world.wall_ms():
            self._run(Ticket(0), Tick())
        else:
            self._arm()


def _resolve(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)
