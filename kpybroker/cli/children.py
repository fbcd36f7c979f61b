"""Runs several nodes as child processes; the parent process only starts, watches and stops them.

The children are forked after the broker's modules are imported, because the imports take most of the start time. A
child stops when its parent ends, even by SIGKILL, because its standard input is then closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from kpybroker.cli.local_cluster import LocalNode
from kpybroker.errors import ConfigError

HAND_OVER_PATIENCE_S = 15.0
STOP_PATIENCE_S = 30.0
"""A child that has not stopped after this time is killed. A stop on a slow disk takes less (`storage/dirs/closing.py`).
"""
HAND_OVER = b"hand over\n"
"""Sent to each child in turn before all children are stopped."""
TOLD_BYTES = 2000
"""The number of bytes at the end of the log that are read after a child has ended."""
USED_AT_START = (
    "api_versions",
    "begin_quorum_epoch",
    "broker_heartbeat",
    "broker_registration",
    "fetch",
    "metadata",
    "produce",
    "vote",
)
"""Handlers that every node needs while it starts. Other handlers are imported on first use."""


class Child:
    """One node's process. It prints one line when it serves clients, and one when it has handed over its leaderships.

    `ended` resolves with its exit code, negative for a signal.
    """

    def __init__(self, node: LocalNode, pid: int, stdin: int, stdout: int) -> None:
        self.node = node
        self.pid = pid
        self._stdin = stdin
        self._stdout = stdout
        self._said = b""
        self.ready = asyncio.Event()
        self._left = asyncio.Event()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        os.set_blocking(stdout, False)
        asyncio.get_running_loop().add_reader(stdout, self._hear)

    def _hear(self) -> None:
        heard = os.read(self._stdout, 65536)
        self._said += heard
        lines = self._said.count(b"\n")
        if lines:
            self.ready.set()
        if lines > 1 or not heard:
            self._left.set()
        if heard or self.ended.done():
            return
        asyncio.get_running_loop().remove_reader(self._stdout)
        os.close(self._stdout)
        _, status = os.waitpid(self.pid, 0)  # its stdout is closed: the process has ended or is about to
        self.ended.set_result(os.waitstatus_to_exitcode(status))

    async def hand_over(self) -> None:
        """Have the node hand over its leaderships while it still serves clients. Waits at most HAND_OVER_PATIENCE_S."""
        if self.ended.done() or not self.ready.is_set():
            return
        with contextlib.suppress(BrokenPipeError, TimeoutError):
            os.write(self._stdin, HAND_OVER)
            async with asyncio.timeout(HAND_OVER_PATIENCE_S):
                await self._left.wait()

    async def stop(self) -> None:
        """Close the child's stdin, which stops it, and kill it if it does not stop in time. Returns when it has
        ended."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        await asyncio.wait([self.ended], timeout=STOP_PATIENCE_S)
        if not self.ended.done():
            _say(f"broker {self.node.node_id} did not stop within {STOP_PATIENCE_S:.0f} s and is killed")
            os.kill(self.pid, 9)
            await self.ended

    def death_report(self) -> str:
        """A line that says how the child ended, and the name of its log."""
        code = self.ended.result()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"broker {self.node.node_id} {how}; its log is {self.node.log_file}"

    def last_log_line(self) -> str:
        """The last line of its log."""
        try:
            text = self.node.log_file.read_bytes()[-TOLD_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""
        return text.rpartition("\n")[2]


def fork_all(nodes: Iterable[LocalNode], run: Callable[[LocalNode], int]) -> list[tuple[LocalNode, int, int, int]]:
    """Start a process for each node, which calls `run` and exits with its result. No thread may run yet.

    Returns node, process id, and our ends of its stdin and stdout.
    """
    for name in USED_AT_START:
        importlib.import_module(f"kpybroker.handlers.{name}")
    gc.collect()
    gc.freeze()  # the garbage collector would write to memory pages, which then would no longer be shared
    sys.stdout.flush()
    sys.stderr.flush()
    started: list[tuple[LocalNode, int, int, int]] = []
    for node in nodes:
        child_stdin, stdin = os.pipe()
        stdout, child_stdout = os.pipe()
        pid = os.fork()
        if pid == 0:
            for fd in (stdin, stdout, *(fd for _, _, *ours in started for fd in ours)):
                os.close(fd)
            _be_a_child(node, child_stdin, child_stdout, run)
        os.close(child_stdin)
        os.close(child_stdout)
        started.append((node, pid, stdin, stdout))
    return started


def _be_a_child(node: LocalNode, stdin: int, stdout: int, run: Callable[[LocalNode], int]) -> NoReturn:
    """Run a node in the child. Ends with os._exit, so that no cleanup of the parent runs here."""
    code = 1
    try:
        os.setsid()  # Ctrl-C goes only to the parent, which stops its children in order
        log = os.open(node.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for fd, standard in ((stdin, 0), (stdout, 1), (log, 2)):
            os.dup2(fd, standard)
            os.close(fd)
        code = run(node)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except ConfigError as problem:
        print(f"kpybroker: {problem}", file=sys.stderr)
        code = 2
    finally:
        bug = sys.exception()
        if bug is not None:
            traceback.print_exception(bug)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


async def all_ready(children: list[Child], wish: asyncio.Future[Any]) -> bool:
    """Wait until all nodes serve clients. Returns False if a stop was requested first. Raises ConfigError if a child
    has ended."""
    ready = asyncio.ensure_future(_all_are_ready(children))
    waits: list[asyncio.Future[Any]] = [ready, wish, *(child.ended for child in children)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    serve = ready.done()
    ready.cancel()
    for child in children:
        if child.ended.done():
            raise ConfigError(f"{child.death_report()}: {child.last_log_line()}")
    return serve and not wish.done()


async def _all_are_ready(children: list[Child]) -> None:
    for child in children:
        await child.ready.wait()


async def watch(children: list[Child], wish: asyncio.Future[Any]) -> str | None:
    """Wait until a stop is requested (returns None) or all children have ended (returns the reason). Reports each child
    that ends."""
    alive = list(children)
    while alive and not wish.done():
        waits: list[asyncio.Future[Any]] = [wish, *(child.ended for child in alive)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for child in [child for child in alive if child.ended.done()]:
            alive.remove(child)
            left = f"{len(alive)} of {len(children)} still run" if alive else "none is left"
            _say(f"{child.death_report()}; {left}")
    return None if wish.done() else "all brokers have ended"


async def stop_all(children: list[Child]) -> None:
    """Have the children hand over their leaderships one by one while all voters run, then stop all at once."""
    for child in children:
        await child.hand_over()
    await asyncio.gather(*(child.stop() for child in children))


def _say(what: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(f"kpybroker: {what}", file=sys.stderr, flush=True)
