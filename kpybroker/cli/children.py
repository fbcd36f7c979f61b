"""Runs several nodes as child processes. The parent process only starts, watches and stops them, and writes their logs.

A child stops when its parent ends, even by SIGKILL, because its standard input is then closed. A child that dies is
started again; one that stops with exit code 0 was asked to, and stays stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kpybroker import BUILD
from kpybroker.cli.lifetime import CONTRADICTED, HAND_OVER, complain, written
from kpybroker.compiled_build import COMPILED, VARIABLE
from kpybroker.errors import ConfigError
from kpybroker.storage.dirs.formatting import META_PROPERTIES
from kpybroker.world.processes import apart

HAND_OVER_PATIENCE_S = 15.0
"""The time for the hand-overs of all children."""
STOP_PATIENCE_S = 30.0
"""A child that has not stopped after this time is killed. A stop on a slow disk takes less (`storage/dirs/closing.py`).
"""
LOG_READ_BYTES = 1 << 16
"""The most bytes of a child's log that are read at once. A longer line is split."""
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 30.0
"""The pause before a dead child is started again. It doubles with each death, until the child has run for STEADY_S."""
STEADY_S = 60.0
REFUSALS_MAX = 3
"""How often in a row a child may end because its settings or its directory cannot be used, before all are stopped."""
MISUSED = 2
"""The exit code of a child whose settings or directory cannot be used."""
CANNOT_LISTEN = "cannot listen on "


class ChildNode(NamedTuple):
    """A node to run. `arguments` are further ones of `kpybroker serve`."""

    node_id: int
    settings: Mapping[str, str]
    """All its settings. It gets them again when it is started again, and not those of a file that has changed since."""
    metadata_directory: str
    arguments: Sequence[str] = ()
    hint: str = ""
    """What to do if it cannot listen on its ports."""


class Child:
    """The process of a node. It prints one line when it serves clients, and one when it has handed over its
    leaderships.

    `ended` resolves with its exit code, negative for a signal.
    """

    def __init__(self, node: ChildNode, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None, "its standard input is a pipe"
        assert process.stdout is not None, "its standard output is a pipe"
        assert process.stderr is not None, "its standard error is a pipe"
        self.node_id = node.node_id
        self._hint = node.hint
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self.ready = asyncio.Event()
        self.ready_line = ""
        self._left = asyncio.Event()
        self._began = asyncio.get_running_loop().time()
        self._last_line = ""
        self.ended = asyncio.ensure_future(self._listen())

    async def _listen(self) -> int:
        copying = asyncio.ensure_future(self._copy_log())
        while line := await self._stdout.readline():
            if self.ready.is_set():
                self._left.set()
            else:
                self.ready_line = line.decode(errors="replace").rstrip()
            self.ready.set()
        self._left.set()
        await copying
        return await self._process.wait()

    async def _copy_log(self) -> None:
        rest = b""
        while read := await self._stderr.read(LOG_READ_BYTES):
            *lines, rest = (rest + read).split(b"\n")
            if len(rest) > LOG_READ_BYTES:
                lines, rest = [*lines, rest], b""
            self._write(lines)
        self._write([rest] if rest else [])

    def _write(self, lines: list[bytes]) -> None:
        texts = [line.decode(errors="replace").rstrip("\r") for line in lines]
        self._last_line = texts[-1] if texts else self._last_line
        # lines of an audit log in JSON have no prefix, like those of a single node
        complain(*(text if text.startswith("{") else f"node {self.node_id} | {text}" for text in texts))

    async def hand_over(self, patience_s: float) -> None:
        """Have the node hand over its leaderships while it still serves clients. Waits at most `patience_s`."""
        if self.ended.done() or not self.ready.is_set():
            return
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(patience_s):
                self._stdin.write(HAND_OVER)
                await self._stdin.drain()
                await self._left.wait()

    async def stop(self) -> None:
        """Close the child's stdin, which stops it, and kill it if it does not stop in time. Returns when it has
        ended."""
        self._stdin.close()
        await asyncio.wait([self.ended], timeout=STOP_PATIENCE_S)
        if not self.ended.done():
            complain(f"kpybroker: node {self.node_id} did not stop within {STOP_PATIENCE_S:.0f} s and is killed")
            self._process.kill()
            await self.ended

    def fact(self, name: str) -> str:
        """A word of the ready line, such as `http`; empty if the line lacks it."""
        words = self.ready_line.split(" ")
        return next((word.partition("=")[2] for word in reversed(words) if word.startswith(f"{name}=")), "")

    def age_s(self) -> float:
        """The time since its start."""
        return asyncio.get_running_loop().time() - self._began

    def death_report(self) -> str:
        """How the child has ended, with its last log line unless a signal killed it."""
        code = self.ended.result()
        if code < 0:
            return f"node {self.node_id} was killed by signal {-code}"
        if code == 0:
            return f"node {self.node_id} has stopped"
        hint = f"; {self._hint}" if code == MISUSED and self._hint and CANNOT_LISTEN in self._last_line else ""
        return f"node {self.node_id} ended with code {code}: {self._last_line}{hint}"


class KeptNode:
    """A node whose process is started again when it dies. `child` is its current or last process."""

    def __init__(self, node: ChildNode, child: Child) -> None:
        self.node = node
        self.child = child

    @property
    def http(self) -> str:
        """Where the node serves its own pages; empty until it serves clients, and from a death on until it serves them
        again. A node that was asked to stop keeps its address, at which nothing answers."""
        ended = self.child.ended
        return "" if ended.done() and ended.result() != 0 else self.child.fact("http")

    async def keep_running(self) -> str | None:
        """Return None when the node was asked to stop, or the reason why it is not started once more."""
        deaths = refusals = 0
        while True:
            await asyncio.wait([self.child.ended])  # if this is cancelled, `ended` must not be
            code = self.child.ended.result()
            if code == 0:
                return None
            if code == CONTRADICTED:
                return self.child.death_report()
            refusals = refusals + 1 if code == MISUSED and not self.child.ready.is_set() else 0
            if refusals == REFUSALS_MAX:
                return f"{self.child.death_report()}; it did not start {REFUSALS_MAX} times in a row"
            deaths = 1 if self.child.age_s() >= STEADY_S else deaths + 1
            complain(f"kpybroker: {self.child.death_report()}; it is started again in {pause_s(deaths):g} s")
            while not await self._start_after(pause_s(deaths)):
                deaths += 1
                if not self._has_metadata():
                    where = self.node.metadata_directory
                    return f"{where} of node {self.node.node_id} has no {META_PROPERTIES} any more; restore it"
            await asyncio.wait(
                [self.child.ended, ready := asyncio.ensure_future(self.child.ready.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            ready.cancel()
            if self.child.ready.is_set():
                complain(f"kpybroker: node {self.node.node_id} serves clients again")

    def _has_metadata(self) -> bool:
        """Whether its directory is still formatted. Otherwise it would format it once more, and the other nodes would
        follow its empty metadata log and drop their replicas."""
        return os.path.exists(f"{self.node.metadata_directory}/{META_PROPERTIES}")

    async def _start_after(self, pause_s: float) -> bool:
        """Whether the process could be started, for example because there is enough memory."""
        await asyncio.sleep(pause_s)
        if not self._has_metadata():
            return False
        try:
            self.child = await start(self.node)
        except OSError as error:
            complain(f"kpybroker: cannot start node {self.node.node_id}: {error.strerror}; it is tried again")
            return False
        return True


def pause_s(deaths: int) -> float:
    """The pause after a number of deaths in a row."""
    return min(PAUSE_MIN_S * 2.0 ** min(deaths - 1, 16), PAUSE_MAX_S)


async def start(node: ChildNode) -> Child:
    """Start the process of a node. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "kpybroker", "serve", "--set", f"node.id={node.node_id}", *node.arguments),
        *("--commands", "--settings-from-parent"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        **apart(),
    )
    assert process.stdin is not None, "it is a pipe"
    process.stdin.write(written(node.settings))  # not a file, whose secrets would stay if this process is killed
    return Child(node, process)


def _environment() -> dict[str, str] | None:
    """If this process runs the sources, the children do so without a line of each that says why."""
    return {**os.environ, VARIABLE: "1"} if BUILD != COMPILED else None


async def all_ready(nodes: list[KeptNode], wish: asyncio.Future[Any]) -> str | None:
    """Wait until all nodes serve clients or a stop is requested. Returns the reason if a child has ended first. Raises
    ConfigError if that is because its settings or its directory cannot be used."""
    children = [node.child for node in nodes]
    ready = asyncio.ensure_future(_all_are_ready(children))
    waits: list[asyncio.Future[Any]] = [ready, wish, *(child.ended for child in children)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    for child in children:
        if child.ended.done():
            if child.ended.result() == MISUSED:
                raise ConfigError(child.death_report())
            return child.death_report()
    return None


async def _all_are_ready(children: list[Child]) -> None:
    for child in children:
        await child.ready.wait()


async def watch(nodes: list[KeptNode], wish: asyncio.Future[Any]) -> str | None:
    """Keep the nodes running until a stop is requested (returns None), one of them cannot be started any more, or all
    have stopped (returns the reason). Reports each node that stops."""
    kept = {asyncio.ensure_future(node.keep_running()): node for node in nodes}
    try:
        while kept:
            await asyncio.wait([wish, *kept], return_when=asyncio.FIRST_COMPLETED)
            if wish.done():
                return None
            for done in [each for each in kept if each.done()]:
                node = kept.pop(done)
                if (reason := done.result()) is not None:
                    return reason
                left = f"{len(kept)} of {len(nodes)} still run" if kept else "none is left"
                complain(f"kpybroker: {node.child.death_report()}; {left}")
    finally:
        for each in kept:
            each.cancel()
        await asyncio.gather(*kept, return_exceptions=True)
    return "all nodes have stopped"


async def stop_all(nodes: list[KeptNode]) -> None:
    """Have the nodes hand over their leaderships one by one while all voters run, then stop all at once. Takes at most
    HAND_OVER_PATIENCE_S + STOP_PATIENCE_S; a node that hangs leaves the others their share of the first."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + HAND_OVER_PATIENCE_S
    for place, node in enumerate(nodes):
        await node.child.hand_over((deadline - loop.time()) / (len(nodes) - place))
    await asyncio.gather(*(node.child.stop() for node in nodes))
