"""Replicated state: a log and a pure machine, and the Runner that brings them together (DESIGN: "Machines").

A Machine looks (`decide`) and changes (`apply`) in separate steps, so that replaying the log rebuilds the state. The
Runner lets nothing come between the two, and lets an answer out only when every record that it applied or could have
read has committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.world import World

log = logging.getLogger(__name__)

TICKETS_LIMIT = 100_000
"""Commands of one Runner that may wait for their answer."""


class Stored(NamedTuple):
    """One record of a Machine's log. `offset` is -1 until it has been appended; a metadata record has no key."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = -1


class Ticket:
    """Who asked: an answer, given now or by a later step, goes to it."""

    __slots__ = ("answer", "answered", "future")

    def __init__(self) -> None:
        self.answered = False
        self.answer: Any = None
        self.future: asyncio.Future[Any] | None = None

    def give(self, answer: Any) -> None:
        """The answer is released; a second one is of no effect."""
        if self.answered:
            return
        self.answered = True
        self.answer = answer
        if self.future is not None and not self.future.done():
            if isinstance(answer, KafkaError):
                self.future.set_exception(answer)
            else:
                self.future.set_result(answer)


@dataclass(slots=True)
class Outcome:
    """What a step decides: records to append, and answers, also to tickets of earlier steps.

    An answer is a value, or a KafkaError that `ask` raises.
    """

    records: list[Stored] = field(default_factory=list)
    answers: list[tuple[Any, Any]] = field(default_factory=list)


class Machine(Protocol):
    """Replicated state."""

    def decide(self, ticket: Any, command: Any, now_ms: int) -> Outcome:
        """Look, and say what is to be written and who is answered. Hard state is not changed."""

    def apply(self, record: Stored) -> None:
        """Take one record into the hard state: the only place where it changes."""

    def deadline_ms(self) -> int | None:
        """When to be woken with a tick, in wall milliseconds."""


class StateLog(Protocol):
    """The log of a Machine: the Quorum for the controller, a Partition for a coordinator."""

    @property
    def end(self) -> int: ...

    @property
    def committed(self) -> int:
        """Everything below this offset has committed."""

    def on_committed(self, callback: Callable[[], None]) -> None:
        """Call whenever `committed` has grown; possibly from inside `append`."""

    def append(self, records: Sequence[Stored]) -> int:
        """Append atomically; the new end. Raises KafkaError where this node does not lead the log."""

    def replay(self) -> AsyncIterator[Stored]:
        """Every record from the start, a snapshot's first, to the end."""


class Runner:
    """Runs one Machine over its log. `load`, then `ask`; `stop` refuses who waits.

    late_code: what a command is refused with whose records did not commit in its time. on_bug: called with the error
    when the Machine fails an assertion or breaks otherwise: a Machine that guesses would be worse than none.
    """

    def __init__(
        self,
        machine: Machine,
        state_log: StateLog,
        world: World,
        *,
        tick: Any,
        late_code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE,
        on_bug: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.machine = machine
        self._log = state_log
        self._world = world
        self._tick = tick
        self._late_code = late_code
        self._on_bug = on_bug
        self._held: deque[tuple[int, Any, Any]] = deque()
        self._tickets: dict[Ticket, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for_ms: int | None = None
        self._stopped: KafkaError | None = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        self.loaded = False

    async def load(self) -> None:
        """Replay the log into the Machine; from then on commands are taken."""
        async for record in self._log.replay():
            self.machine.apply(record)
        self._log.on_committed(self._release)
        self._stopped = None
        self.loaded = True
        self._arm()

    async def ask(self, command: Any, timeout_ms: int | None = None) -> Any:
        """The Machine's answer once it is safe to give. Raises KafkaError.

        Does not suspend where the answer is safe at once. timeout_ms: when to give up waiting; the state stays.
        """
        if self._stopped is not None:
            raise self._stopped
        if len(self._tickets) >= TICKETS_LIMIT:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "too many commands wait for their answer")
        ticket = Ticket()
        self._run(ticket, command)
        if ticket.answered:
            if isinstance(ticket.answer, KafkaError):
                raise ticket.answer
            return ticket.answer
        loop = asyncio.get_running_loop()
        ticket.future = loop.create_future()
        self._tickets[ticket] = None
        late = None
        if timeout_ms is not None:
            late = loop.call_later(timeout_ms / 1000, ticket.give, KafkaError(self._late_code))
        try:
            return await ticket.future
        finally:
            if late is not None:
                late.cancel()
            self._tickets.pop(ticket, None)

    def tell(self, command: Any) -> None:
        """Run a command whose answer nobody waits for."""
        if self._stopped is None:
            self._run(Ticket(), command)

    def stop(self, why: KafkaError) -> None:
        """Leadership is lost, or the broker stops: everybody who waits is refused, and so is who comes later."""
        self._stopped = why
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.clear()
        for ticket in list(self._tickets):
            ticket.give(why)

    def _run(self, ticket: Ticket, command: Any) -> None:
        """One atomic step. Not a coroutine: nothing may come between decide and apply."""
        try:
            outcome = self.machine.decide(ticket, command, self._world.wall_ms())
            if outcome.records:
                outcome = self._write(outcome)
        except KafkaError:
            raise
        except (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as bug:
            log.critical("bug in %s while it ran %s", type(self.machine).__name__, command, exc_info=bug)
            self.stop(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
            if self._on_bug is not None:
                self._on_bug(bug)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) from bug
        self._hold(outcome.answers)
        self._arm()

    def _write(self, outcome: Outcome) -> Outcome:
        try:
            end = self._log.append(outcome.records)
        except KafkaError as refusal:
            return Outcome(answers=[(ticket, refusal) for ticket, _ in outcome.answers])
        first = end - len(outcome.records)
        for position, record in enumerate(outcome.records):
            self.machine.apply(record._replace(offset=first + position))
        return outcome

    def _hold(self, answers: list[tuple[Any, Any]]) -> None:
        if not answers:
            return
        end = self._log.end
        if self._log.committed >= end and not self._held:
            for ticket, answer in answers:
                ticket.give(answer)
            return
        self._held.extend((end, ticket, answer) for ticket, answer in answers)
        self._release()

    def _release(self) -> None:
        committed = self._log.committed
        while self._held and self._held[0][0] <= committed:
            _, ticket, answer = self._held.popleft()
            ticket.give(answer)

    def _arm(self) -> None:
        if self._stopped is not None:
            return
        deadline_ms = self.machine.deadline_ms()
        if deadline_ms == self._armed_for_ms:
            return
        self._armed_for_ms = deadline_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            wait_s = max(deadline_ms - self._world.wall_ms(), 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._armed_for_ms = None
        self.tell(self._tick)
