"""An event loop whose clock jumps to the next timer, and the owners of its callbacks.

Every callback belongs to an owner: a process of a node, a client, or the simulation. The callback's context holds the
owner. So everything that it schedules belongs to the same owner, and a task keeps its owner no matter which callback
wakes it. This makes it possible to halt or kill a process: callbacks of a dead owner do not run.
"""

from __future__ import annotations

import asyncio
import heapq
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH_S = 1000.0
"""The start of the monotonic clock. It is not zero, so that no code can rely on a clock that starts at zero."""
TURNS_MAX = 1_000_000
_TASKS_LOOKED_THROUGH = 64


class Dead(BaseException):
    """The process died in the middle of a call to its World. The code of the process must not catch this."""


class Stuck(Exception):
    """The simulation cannot continue: no callback is due any more, or too many have run."""


class Owner:
    """Owns callbacks, which run while it is `alive` and wait while it is `halted`."""

    __slots__ = ("alive", "context", "deferred", "halted", "name", "prune_at", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.halted = False
        self.deferred: list[_Handle] = []
        self.tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        self.prune_at = _TASKS_LOOKED_THROUGH
        self.context = copy_context()
        self.context.run(_owner.set, self)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def die(self) -> None:
        """Mark the owner as dead, so that its callbacks no longer run."""
        self.alive = False


_owner: ContextVar[Owner] = ContextVar("owner")


class _Handle(asyncio.TimerHandle):
    """A callback and its owner."""

    __slots__ = ("owner",)
    _args: tuple[Any, ...]
    _callback: Callable[..., object] | None
    _context: Context
    _loop: VirtualLoop
    _repr: None
    _source_traceback: None
    _when: float

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: VirtualLoop,
        context: Context,
        owner: Owner,
    ) -> None:
        """Initialize like asyncio's Handle and TimerHandle, but without reading the loop's debug mode, which takes a
        tenth of the time of a run."""
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._source_traceback = self._repr = None
        self._cancelled = self._scheduled = False
        self.owner = owner

    def run(self) -> None:
        self._run()


class VirtualLoop(asyncio.AbstractEventLoop):
    """An asyncio loop without a selector. Time passes only when no callback is due now."""

    def __init__(self, on_problem: Callable[[Owner, str, BaseException | None], None] | None = None) -> None:
        self._now = EPOCH_S
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._sequence = 0
        self._running = False
        self._closed = False
        self.simulation = Owner("simulation")
        self.current = self.simulation
        """The owner of the running callback."""
        self.turns = 0
        """The number of callbacks that have run."""
        self.turns_max = TURNS_MAX
        self.on_problem = on_problem or _raise
        """Called with exceptions that callbacks and abandoned tasks raise."""

    def end_soon(self) -> None:
        """Make the next turn raise Stuck."""
        self.turns_max = 0

    # ---- time and callbacks

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = copy_context()
        handle = _Handle(self._now, callback, args, self, context, context.get(_owner, self.simulation))
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        raise AssertionError("there is one thread in a simulation")

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if context is None:
            context = copy_context()
        return self._at(when, callback, args, context, context.get(_owner, self.simulation))

    def _at(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context, owner: Owner
    ) -> _Handle:
        handle = _Handle(when, callback, args, self, context, owner)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by asyncio's TimerHandle. Does nothing, because a cancelled timer stays in the heap until its time."""

    @contextmanager
    def acting(self, owner: Owner) -> Iterator[None]:
        """A context in which scheduled callbacks and tasks belong to `owner`."""
        before = _owner.set(owner)
        try:
            yield
        finally:
            _owner.reset(before)

    def soon_for(self, owner: Owner, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Run a callback on behalf of `owner`, as its kernel would."""
        self._ready.append(_Handle(self._now, callback, args, self, owner.context, owner))

    def at_for(self, owner: Owner, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Run a callback on behalf of `owner` at a time."""
        self._at(when, callback, args, owner.context, owner)

    # ---- owners

    def halt(self, owner: Owner) -> None:
        """Let the owner's callbacks wait, as after SIGSTOP."""
        owner.halted = True

    def go_on(self, owner: Owner) -> None:
        """Make the callbacks that waited due now, in their order, as after SIGCONT."""
        owner.halted = False
        self._ready.extend(owner.deferred)
        owner.deferred.clear()

    def block(self, owner: Owner, seconds: float) -> None:
        """Block the owner, like a thread in a system call."""
        if not owner.halted:
            self.halt(owner)
            self.at_for(self.simulation, self._now + seconds, self.go_on, owner)

    def bury(self, owner: Owner) -> None:
        """Mark the owner as dead, as after SIGKILL, and then run the `finally` blocks of its tasks."""
        owner.alive = False
        owner.deferred.clear()
        tasks = [task for task in (ref() for ref in owner.tasks) if task is not None and not task.done()]
        owner.tasks.clear()
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # a killed process logs nothing
            work = task.get_coro()
            assert work is not None
            _Handle(self._now, work.close, (), self, owner.context, owner).run()

    # ---- running

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        assert asyncio._get_running_loop() is None, "a loop is running already"
        asyncio._set_running_loop(self)
        self._running = True
        try:
            awaited: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
            while not awaited.done():
                self._turn()
            return awaited.result()
        finally:
            self._running = False
            asyncio._set_running_loop(None)

    def _turn(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready:
            if not timers:
                raise Stuck("no callback is due any more, but the simulation is not over")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            owner = handle.owner
            if handle.cancelled() or not owner.alive:
                continue
            if owner.halted:
                owner.deferred.append(handle)
                continue
            self.current = owner
            self.turns += 1
            handle.run()
        self.current = self.simulation
        if self.turns > self.turns_max:
            raise Stuck(f"more than {self.turns_max} callbacks have run by {self._now - EPOCH_S:.1f} s")

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    # ---- futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=name or "", context=context)
        owner = _owner.get(self.simulation)
        if len(owner.tasks) >= owner.prune_at:
            owner.tasks = [ref for ref in owner.tasks if (known := ref()) is not None and not known.done()]
            owner.prune_at = max(2 * len(owner.tasks), _TASKS_LOOKED_THROUGH)
        owner.tasks.append(weakref.ref(task))
        return task

    # ---- other methods that asyncio requires of a loop

    def get_debug(self) -> bool:
        return False

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        handle = context.get("handle")
        owner = handle.owner if isinstance(handle, _Handle) else self.current
        raised = context.get("exception")
        if isinstance(raised, Dead) or not owner.alive:
            return
        self.on_problem(owner, str(context.get("message")), raised)


def _raise(owner: Owner, message: str, raised: BaseException | None) -> None:
    raise AssertionError(f"{owner}: {message}") from raised
