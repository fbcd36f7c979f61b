"""A Machine that stores words, for tests, with a log that commits on request of the test, and with a clock that jumps
to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.machine.contract import Moment, Outcome, Stored, Tick, Ticket
from kpybroker.machine.runner import Runner
from kpybroker.world.expiry_clock import ExpiryClock


class JumpingSelector(selectors.DefaultSelector):
    """A selector whose waits jump to the next timer, because nothing happens between timers."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout:
            self.now += timeout
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumps = JumpingSelector()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now


def run(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(play())


class Clock:
    """The part of a World that a Runner uses. Both clocks are based on the time of the event loop."""

    random = network = disk = None
    ahead_ms = 0
    """The difference between the wall clock and the steady clock."""

    def __init__(self) -> None:
        self.expiry = ExpiryClock(self.steady_ms)

    def wall_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000) + self.ahead_ms

    def steady_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)


class ManualLog:
    """A StateLog that commits on request of the test."""

    def __init__(self, start: Sequence[bytes] = (), *, at_once: bool = False) -> None:
        self.values = list(start)
        self.committed = len(self.values)
        self.at_once = at_once
        self.refusal: KafkaError | Damage | None = None
        self.callbacks: list[Callable[[], None]] = []

    @property
    def end(self) -> int:
        return len(self.values)

    def append(self, records: Sequence[Stored]) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.values += [record.value or b"" for record in records]
        if self.at_once:
            self.commit(self.end)
        return self.end

    def commit(self, end: int) -> None:
        self.committed = end
        for callback in self.callbacks:
            callback()

    def on_committed(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    async def replay(self) -> AsyncIterator[list[Stored]]:
        for offset, value in enumerate(self.values):
            yield [Stored(None, value, 0, offset)]


class Words:
    """A machine that stores words. The command "word" writes a word and returns the offset, "?" returns all words,
    "park" waits for the next word, "no" is refused, "bug" and "park and bug" raise an error, and "at N" requests a tick
    at N ms."""

    def __init__(self) -> None:
        self.words: list[tuple[int, str]] = []
        self.parked: list[Ticket] = []
        self.wake_ms: int | None = None
        self.ticks: list[int] = []

    def decide(self, ticket: Ticket, command: Any, now: Moment) -> Outcome:
        if isinstance(command, Tick):
            self.ticks.append(now.steady_ms)
            self.wake_ms = None if self.wake_ms is not None and self.wake_ms <= now.steady_ms else self.wake_ms
            return Outcome()
        if command == "?":
            return Outcome(answers=[(ticket, [word for _, word in self.words])])
        if command == "no":
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if command.startswith("park"):
            self.parked.append(ticket)
            if command != "park":
                raise AssertionError("a bug")
            return Outcome()
        if command == "bug":
            raise AssertionError("a bug")
        if command.startswith("at "):
            self.wake_ms = int(command[3:])
            return Outcome(answers=[(ticket, None)])
        answers: list[tuple[Ticket, Any]] = [(parked, command) for parked in self.parked]
        self.parked.clear()
        return Outcome([Stored(None, command.encode())], [*answers, (ticket, command)])

    def apply(self, record: Stored) -> None:
        assert record.value is not None
        if record.value == b"poison":
            raise ValueError("cannot be applied")
        self.words.append((record.offset, record.value.decode()))

    def deadline_ms(self) -> int | None:
        return self.wake_ms


def runner_of(log: ManualLog, **options: Any) -> tuple[Runner, Words]:
    words = Words()
    return Runner(words, log, Clock(), **options), words  # type: ignore[arg-type]  # the clock is all it asks of a World


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)
