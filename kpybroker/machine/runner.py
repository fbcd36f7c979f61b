"""Runs machines: each command is one atomic step, and its answer is released when it is committed."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.machine.contract import Answer, Machine, Moment, Outcome, StateLog, Stored, Tick, Ticket
from kpybroker.world import World

log = logging.getLogger(__name__)

WAITERS_LIMIT = 200_000


class Runner:
    """Runs one Machine on one StateLog, from `load` to `stop`.

    - loading_code: refuses commands until `load` is done.
    - late_code: refuses a command whose answer was decided but not committed in time; the state keeps its changes.
    - on_bug: called with any exception of a machine but KafkaError, unless a caller waits for that decision. The state
      cannot be trusted then, and the Runner has stopped.
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
        """Replay the log into the machine, then take commands; the first is a Tick. Raises the log's Damage."""
        async for records in self.log.replay():
            if self._stopped:
                return
            self._replay(records)
        if self._stopped:
            return
        self._refusal = None
        self.log.on_committed(self._release)
        self._run(Ticket(0), Tick())

    async def ask(self, command: Any, timeout_ms: int) -> Any:
        """Decide a command and wait for its answer. Raises KafkaError: the machine's refusal, or the Runner's.

        It does not suspend if the answer can be released at once. The timeout covers the wait for the commit; the
        machine itself limits how long a ticket is parked.
        """
        ticket = self._begin(command, timeout_ms)
        if ticket.is_settled:
            answer = ticket.answer
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
        """Like `ask`, without a coroutine: calls `done` with the answer, which may be a KafkaError.

        If the answer can be released at once, `done` is called at once, and None is returned. Otherwise it is called
        from the loop, unless the ticket is abandoned before. Raises the Runner's KafkaError.
        """
        ticket = self._begin(command, timeout_ms)
        if ticket.is_settled:
            done(ticket.answer)
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
        ticket.wait(done)
        self.waiters += 1
        self._asking[ticket] = None

    def _leave_soon(self, ticket: Ticket, done: Callable[[Answer], None], answer: Answer) -> None:
        """Not within the current step: `done` may give the machine another command."""
        asyncio.get_running_loop().call_soon(self._leave, ticket, done, answer)

    def _leave(self, ticket: Ticket, done: Callable[[Answer], None], answer: Answer) -> None:
        if not ticket.is_abandoned:
            self.abandon(ticket)
            done(answer)

    def abandon(self, ticket: Ticket) -> None:
        """Nobody waits for the answer any more."""
        if not ticket.is_abandoned:
            ticket.abandon()
            self.waiters -= 1
            del self._asking[ticket]

    def tell(self, command: Any) -> None:
        """Decide a command that has no caller; nothing happens while loading or after a stop."""
        if self._refusal is None:
            self._run(Ticket(0), command)

    def stop(self, error: KafkaError) -> None:
        """Refuse all commands that wait, and all that follow. The owner drops the machine."""
        if self._stopped:
            return
        self._stopped = True
        self._refusal = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.clear()
        for ticket in list(self._asking):
            ticket.settle(KafkaError(error.code, error.message))

    def _run(self, ticket: Ticket, command: Any, *, is_asked: bool = False) -> None:
        """One atomic step. Not a coroutine: nothing may run between decide and apply."""
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
                answered.settle(answer)
            return
        end = self.log.end
        if self.log.committed >= end and not self._held:
            for answered, answer in answers:
                answered.settle(answer)
        elif answers:
            self._hold(end, answers)
            self._release()
        self._arm()

    def _step(self, ticket: Ticket, command: Any, is_asked: bool) -> list[tuple[Ticket, Answer]]:
        try:
            outcome = self.machine.decide(ticket, command, Moment(self.world.steady_ms(), self.world.wall_ms()))
        except KafkaError as refusal:
            outcome = Outcome(answers=[(ticket, refusal)])
        except Exception as bug:
            if not is_asked:
                raise
            log.exception("bug in the decision on %s, which is refused", type(command).__name__)
            ticket.settle(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, repr(bug)))
            ticket.void()
            return []
        for answered, _ in outcome.answers:
            answered.decide()
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

    def _replay(self, records: Sequence[Stored]) -> None:
        sound = False
        try:
            for record in records:
                self.machine.apply(record)
            sound = True
        finally:
            if not sound:
                self._break_off(sys.exception())

    def _break_off(self, bug: BaseException | None) -> None:
        """Any exception of a machine but KafkaError is a bug, after which its state cannot be trusted."""
        self.stop(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a bug stopped this state machine"))
        if self._on_bug is not None and bug is not None:
            self._on_bug(bug)

    def _hold(self, end: int, answers: list[tuple[Ticket, Answer]]) -> None:
        self._held.append((end, answers))
        for ticket, answer in answers:
            ticket.hold(answer, self._expire)

    def _release(self) -> None:
        """The log's commit offset has advanced: release the answers that depend on committed records only, in the order
        in which they were decided."""
        committed = self.log.committed
        while self._held and self._held[0][0] <= committed:
            for ticket, answer in self._held.popleft()[1]:
                ticket.settle(answer)

    def _expire(self, ticket: Ticket) -> None:
        ticket.settle(KafkaError(self._late_code, "decided, but not committed in time"))

    def _arm(self) -> None:
        """Set the timer for the machine's deadline. An earlier timer stays, and checks again when it fires."""
        deadline_ms = self.machine.deadline_ms()
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        delay_ms = max(deadline_ms - self.world.steady_ms(), 1)
        self._timer_ms = deadline_ms
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        deadline_ms = self.machine.deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.world.steady_ms():
            self._run(Ticket(0), Tick())
        else:
            self._arm()


def _resolve(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)
