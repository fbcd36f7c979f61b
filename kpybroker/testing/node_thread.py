"""One node of a test cluster in a thread of the test's process. It starts faster than a process, and shares its GIL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from kpybroker.cli import control
from kpybroker.config import BrokerConfig, parse_config
from kpybroker.errors import ConfigError
from kpybroker.server.node import Node
from kpybroker.testing.node import START_TIMEOUT_S, STOP_TIMEOUT_S, BrokerStartError, ReadyFacts
from kpybroker.world.faulty import FaultyWorld
from kpybroker.world.real import RealWorld

OPEN_FILES = 200
"""The most files that a broker keeps open, unless its settings say otherwise: the test's process needs some, too."""
_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
_FILES = "kpybroker.max.open.files"


class NodeThread:
    """The thread of a node. `configure` returns its settings, and the file with the settings of a client that logs in.
    `log` gets what it logs."""

    def __init__(self, node_id: int, configure: Callable[[], tuple[BrokerConfig, Path | None]], log: Path) -> None:
        self.node_id = node_id
        self._configure = configure
        self._log = log
        self._run: _Run | None = None
        self._gate: threading.Event | None = None
        """Set when a paused thread may go on."""

    @property
    def incarnation(self) -> object:
        """Differs after each start. Raises RuntimeError if the node has never been started or was stopped."""
        return self._running()

    @property
    def pid(self) -> int:
        """The id of the test's process. Raises RuntimeError if the node is stopped."""
        self._running()
        return os.getpid()

    def _running(self) -> _Run:
        run = self._run
        if run is None:
            raise RuntimeError(f"broker {self.node_id} is stopped; call start() first")
        return run

    @property
    def is_running(self) -> bool:
        """Whether the node is running, even if it is paused."""
        run = self._run
        return run is not None and not run.has_ended

    @property
    def is_paused(self) -> bool:
        """Whether the thread is halted."""
        return self.is_running and self._gate is not None

    @property
    def takes_commands(self) -> bool:
        """Whether the node is ready, running and not paused."""
        run = self._run
        return run is not None and run.is_ready and not run.has_ended and self._gate is None

    def ended(self) -> str | None:
        """How the node has ended by itself; None while it is running or after `stop`."""
        run = self._run
        return run.why_ended() if run is not None and run.has_ended else None

    def start(self, clock_ahead_ms: int = 0) -> None:
        """Start the thread; `wait_until_ready` waits for it. `clock_ahead_ms`: how far its clock is ahead."""
        self._log.touch()
        self._run = _Run(f"broker {self.node_id}", self._configure, self._log, clock_ahead_ms)

    def wait_until_ready(self) -> ReadyFacts:
        """Wait until the node serves clients. Raises BrokerStartError."""
        run = self._running()
        try:
            return run.ready.result(START_TIMEOUT_S)
        except TimeoutError:
            raise BrokerStartError(f"kpybroker is not ready after {START_TIMEOUT_S:g} s") from None
        except (ConfigError, OSError) as error:
            raise BrokerStartError(f"kpybroker does not start: {str(error).removeprefix('--set: ')}") from error

    def command(self, command: Mapping[str, object]) -> dict[str, Any]:
        """Execute a command (`cli/control.py`) and return the response.

        Raises ValueError if the command is refused, RuntimeError if the broker is not running or is paused.
        """
        if not self.takes_commands:
            how = "is paused" if self._gate is not None else self.ended()
            how = how or ("is starting" if self.is_running else "is stopped")
            raise RuntimeError(f"broker {self.node_id} {how}, so it takes no commands")
        try:
            answer: dict[str, Any] = json.loads(self._running().execute(json.dumps(command).encode()))
        except TimeoutError:
            raise RuntimeError(f"broker {self.node_id} {self.ended() or 'did not answer a command'}") from None
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer

    def hand_over(self) -> None:
        """Have it hand over its leaderships while the other brokers run. Does nothing if it is stopped or paused."""
        if self.takes_commands:
            self._running().hand_over()

    def stop(self) -> None:
        """Stop the node as SIGTERM stops a process, and wait. Kills it after STOP_TIMEOUT_S."""
        self.resume()
        if self._run is not None:
            self._run.stop()
        self.kill()

    def kill(self) -> None:
        """End the node without a clean stop: its connections are closed and it writes nothing more."""
        self.resume()
        run = self._run
        if run is not None:
            run.kill()
            if self._run is run:
                self._run = None

    def pause(self) -> None:
        """Halt the thread: connections stay open, and requests get no response. Raises RuntimeError if it is
        stopped."""
        run = self._running()
        if run.has_ended:
            raise RuntimeError(f"broker {self.node_id} {self.ended()}; call start() first")
        if self._gate is None:
            self._gate = run.pause()

    def resume(self) -> None:
        """Let a paused thread continue."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.set()


class _Run:
    """One run of a node, from its start to its end, in a thread with an event loop of its own."""

    def __init__(
        self, name: str, configure: Callable[[], tuple[BrokerConfig, Path | None]], log: Path, clock_ahead_ms: int
    ) -> None:
        self.ready: Future[ReadyFacts] = Future()
        self._configure = configure
        self._log = log
        self._clock_ahead_ms = clock_ahead_ms
        self._loop = asyncio.new_event_loop()
        self._wish = asyncio.Event()
        """Set when the node is to end."""
        self._is_killed = False
        self._gates: list[threading.Event] = []
        """Set when the paused thread may go on."""
        self._failure: str | None = None
        self._node: Node | None = None
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def is_ready(self) -> bool:
        return self.ready.done() and self.ready.exception() is None and not self._is_killed

    def why_ended(self) -> str:
        return f"ended: {self._failure or 'it was told to stop'}"

    def _main(self) -> None:
        with _logging_to(self._log), asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._watch())

    async def _watch(self) -> None:
        """Serve, and tell the test's thread of an error."""
        serving = asyncio.ensure_future(self._serve())
        await asyncio.wait([serving])
        error = serving.exception()
        if error is not None:
            self._failure = repr(error)
        if not self.ready.done():
            self.ready.set_exception(error or BrokerStartError("kpybroker was stopped while it started"))

    async def _serve(self) -> None:
        real = RealWorld(clock_ahead_ms=self._clock_ahead_ms)
        world = FaultyWorld(real)
        try:
            config, client = self._configure()
            if _FILES not in config.static:
                config = parse_config({**config.static, _FILES: str(OPEN_FILES)})
            wished = asyncio.ensure_future(self._wish.wait())
            starting = asyncio.ensure_future(Node.start(world, config, records_requests=True))
            await asyncio.wait([wished, starting], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()  # which also releases the directory, so the disk is not frozen
                await asyncio.wait([starting])
                if starting.cancelled():
                    return
            node = self._node = starting.result()
            self.ready.set_result(ReadyFacts(node.bootstrap, node.http, client))
            ends: list[asyncio.Future[Any]] = [wished, node.failed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            wished.cancel()
            if self._is_killed:
                world.disk.freeze()
                world.network.shut_down()
                await node.break_off()
            else:
                self._failure = node.failed.result() if node.failed.done() else None
                await node.stop()
        finally:
            real.close()

    def _call(self, work: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(work)

    def execute(self, line: bytes) -> str:
        assert self._node is not None
        executing = control.execute(self._node.server, line)
        try:
            executed = asyncio.run_coroutine_threadsafe(executing, self._loop)
        except RuntimeError:  # the loop has ended
            executing.close()
            raise TimeoutError from None
        return executed.result(STOP_TIMEOUT_S)

    def hand_over(self) -> None:
        assert self._node is not None
        leaving = asyncio.run_coroutine_threadsafe(self._node.broker.leave(also_last=True), self._loop)
        with contextlib.suppress(TimeoutError):
            leaving.result(STOP_TIMEOUT_S)

    def stop(self) -> None:
        self._call(self._wish.set)
        self._thread.join(STOP_TIMEOUT_S)

    def kill(self) -> None:
        self._is_killed = True
        for gate in self._gates:
            gate.set()
        self._call(self._wish.set)
        self._thread.join()

    def pause(self) -> threading.Event:
        """Halt the thread until the returned event is set."""
        gate, halted = threading.Event(), threading.Event()
        self._gates.append(gate)

        def halt() -> None:
            halted.set()
            if not self._is_killed:
                gate.wait()

        self._call(halt)
        halted.wait(STOP_TIMEOUT_S)
        return gate


@contextlib.contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Also write to a file what this thread logs."""
    thread = threading.get_ident()
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(_FORMAT)
    handler.addFilter(lambda record: record.thread == thread)
    logger = logging.getLogger("kpybroker")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
