"""Runs machines: each command is one atomic step, and its answer is returned once its records are committed."""

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
from kpybroker.world.expiry_clock import Alarm, ExpiryClock

log = logging.getLogger(__name__)

WAITERS_LIMIT = 200_000


class Runner:
    """Runs one Machine on one StateLog, from `load` to `stop`.

    - loading_code: the error code of commands until `load` is done.
    - late_code: the error code of a command that was decided but not committed in time. Its records stay in the log.
    - clock: the clock of its deadlines (default: the World's expiry clock).
    - on_bug: called with any exception of the machine other than KafkaError, after the Runner has stopped, because the
      state may be wrong. It is not called if `decide` fails on a command that a caller waits for; only that command
      fails then.
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
        clock: ExpiryClock | None = None,
    ) -> None:
        self.machine = machine
        self.log = log
        self.world = world
        self._clock = world.expiry if clock is None else clock
        self.waiters = 0
        self._late_code = late_code
        self._on_bug = on_bug
        self._waiters_limit = waiters_limit
        self._refusal: KafkaError | None = KafkaError(loading_code)
        self._stopped = False
        self._running = False
        self._held: deque[tuple[int, list[tuple[Ticket, Answer]]]] = deque()
        """Pairs of the end offset that must be committed, and the answers that wait for it."""
        self._asking: dict[Ticket, None] = {}
        self._timer: Alarm | None = None
        self._timer_ms = 0

    @property
    def ready(self) -> bool:
        """Whether the Runner is loaded and not stopped, so that it accepts commands."""
        return self._refusal is None

    async def load(self) -> None:
        """Replay the log into the machine, and then accept commands. The first command is a Tick. Raises Damage."""
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
        """Decide on a command and wait for its answer. Raises the KafkaError of the machine or of the Runner.

        Does not suspend if the answer is available at once. The timeout covers only the wait for the commit; the
        machine itself limits how long it keeps a ticket.
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
            # a copy, because its traceback holds this frame, and thus the answer
            raise KafkaError(answer.code, answer.message, answer.records)
        return answer

    def submit(self, command: Any, timeout_ms: int, done: Callable[[Answer], None]) -> Ticket | None:
        """Like `ask`, for callers without a coroutine: calls `done` with the answer, which may be a KafkaError.

        Calls `done` at once and returns None if the answer is available. If not, `done` is called from the event loop,
        unless the returned ticket is abandoned first. Raises the Runner's KafkaError.
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
            raise KafkaError(self._late_code, f"too many waiting requests: the limit is {self.waiters}")
        ticket = Ticket(timeout_ms)
        self._run(ticket, command, is_asked=True)
        return ticket

    def _wait(self, ticket: Ticket, done: Callable[[Answer], None]) -> None:
        ticket.wait(done)
        self.waiters += 1
        self._asking[ticket] = None

    def _leave_soon(self, ticket: Ticket, done: Callable[[Answer], None], answer: Answer) -> None:
        """Call `done` after the current step, because it may send another command to the machine."""
        asyncio.get_running_loop().call_soon(self._leave, ticket, done, answer)

    def _leave(self, ticket: Ticket, done: Callable[[Answer], None], answer: Answer) -> None:
        if not ticket.is_abandoned:
            self.abandon(ticket)
            done(answer)

    def abandon(self, ticket: Ticket) -> None:
        """Record that the caller no longer waits for the answer."""
        if not ticket.is_abandoned:
            ticket.abandon()
            self.waiters -= 1
            del self._asking[ticket]

    def tell(self, command: Any) -> None:
        """Decide on a command without a caller. Does nothing while loading or after a stop."""
        if self._refusal is None:
            self._run(Ticket(0), command)

    async def committed(self) -> None:
        """Wait until all records are committed that have been decided on so far, or until the Runner has stopped."""
        if self._refusal is None and self.log.committed < self.log.end:
            done = asyncio.Event()
            ticket = Ticket(0)
            self._wait(ticket, lambda _: done.set())
            self._hold(self.log.end, [(ticket, None)])
            try:
                await done.wait()
            finally:
                self.abandon(ticket)

    def stop(self, error: KafkaError) -> None:
        """Refuse all waiting and all later commands with this error."""
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
        """Run one atomic step. It is not a coroutine, because nothing else may run between decide and apply."""
        assert not self._running, "a machine got a command inside its own step"
        self._running = True
        sound = False
        try:
            answers = self._step(ticket, command, is_asked)
            sound = True
        finally:
            self._running = False
            if not sound:
                self._break_off(sys.exception())
        if self._stopped:  # the log went offline, or leadership was lost, during the step
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
            outcome = self.machine.decide(ticket, command, Moment(self._clock.now_ms(), self.world.wall_ms()))
        except KafkaError as refusal:
            # without its traceback, which holds this frame, and thus the answer itself
            outcome = Outcome(answers=[(ticket, refusal.with_traceback(None))])
        except Exception as bug:
            if not is_asked:
                raise
            log.exception("bug while deciding on %s; the command is refused", type(command).__name__)
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
            record.appended_at(offset)
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
        """Stop after a bug (any exception other than a KafkaError), because the machine's state may be wrong."""
        self.stop(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a bug stopped this state machine"))
        if self._on_bug is not None and bug is not None:
            self._on_bug(bug)

    def _hold(self, end: int, answers: list[tuple[Ticket, Answer]]) -> None:
        self._held.append((end, answers))
        for ticket, answer in answers:
            ticket.hold(answer, self._expire)

    def _release(self) -> None:
        """Return the answers that depend only on committed records, in order, after the committed offset has
        advanced."""
        committed = self.log.committed
        while self._held and self._held[0][0] <= committed:
            for ticket, answer in self._held.popleft()[1]:
                ticket.settle(answer)

    def _expire(self, ticket: Ticket) -> None:
        ticket.settle(KafkaError(self._late_code, "decided, but not committed in time"))

    def _arm(self) -> None:
        """Set the timer for the machine's deadline. An earlier timer stays, and sets the next one when it fires."""
        deadline_ms = self.machine.deadline_ms()
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._clock.call_at(deadline_ms, self._wake)

    def _wake(self) -> None:
        self._timer = None
        deadline_ms = self.machine.deadline_ms()
        if deadline_ms is not None and deadline_ms <= self._clock.now_ms():
            self._run(Ticket(0), Tick())
        else:
            self._arm()


def _resolve(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)
