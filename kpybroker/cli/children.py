"""Runs several nodes as child processes; the parent process only starts, watches and stops them.

A child stops when its parent ends, even by SIGKILL, because its standard input is then closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from typing import Any

from kpybroker.cli.local_cluster import LocalNode
from kpybroker.errors import ConfigError
from kpybroker.world.processes import apart

HAND_OVER_PATIENCE_S = 15.0
STOP_PATIENCE_S = 30.0
"""A child that has not stopped after this time is killed. A stop on a slow disk takes less (`storage/dirs/closing.py`).
"""
HAND_OVER = b"hand over\n"
"""Sent to each child in turn before all children are stopped."""
TOLD_BYTES = 2000
"""The number of bytes at the end of the log that are read after a child has ended."""


class Child:
    """One node's process. It prints one line when it serves clients, and one when it has handed over its leaderships.

    `ended` resolves with its exit code, negative for a signal.
    """

    def __init__(self, node: LocalNode, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None, "its standard input is a pipe"
        assert process.stdout is not None, "its standard output is a pipe"
        self.node = node
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self.ready = asyncio.Event()
        self._left = asyncio.Event()
        self.ended = asyncio.ensure_future(self._listen())

    async def _listen(self) -> int:
        while await self._stdout.readline():
            if self.ready.is_set():
                self._left.set()
            self.ready.set()
        self._left.set()
        return await self._process.wait()

    async def hand_over(self) -> None:
        """Have the node hand over its leaderships while it still serves clients. Waits at most HAND_OVER_PATIENCE_S."""
        if self.ended.done() or not self.ready.is_set():
            return
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(HAND_OVER_PATIENCE_S):
                self._stdin.write(HAND_OVER)
                await self._stdin.drain()
                await self._left.wait()

    async def stop(self) -> None:
        """Close the child's stdin, which stops it, and kill it if it does not stop in time. Returns when it has
        ended."""
        self._stdin.close()
        await asyncio.wait([self.ended], timeout=STOP_PATIENCE_S)
        if not self.ended.done():
            _say(f"broker {self.node.node_id} did not stop within {STOP_PATIENCE_S:.0f} s and is killed")
            self._process.kill()
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


async def start(node: LocalNode) -> Child:
    """Start the process of a node. Raises OSError."""
    command = ("serve", "--config", str(node.properties_file), "--ready-file", str(node.ready_file), "--commands")
    with node.log_file.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "kpybroker",
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            **apart(),
        )
    return Child(node, process)


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
