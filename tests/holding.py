"""A node that runs during all examples of a property test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from tests.serving import dialled, serving


class Held(NamedTuple):
    """A node, a connection to it, and the event loop of both."""

    runner: asyncio.Runner
    node: Node
    peer: Peer

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(asyncio.wait_for(work, 60))


@contextlib.contextmanager
def held(directory: Path, properties: Mapping[str, str] | None = None) -> Iterator[Held]:
    """A node that is started once; between two calls of `run` its loop does not run."""
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        node = runner.run(stack.enter_async_context(serving(directory, properties)))
        try:
            peer = runner.run(stack.enter_async_context(dialled(node)))
            yield Held(runner, node, peer)
        finally:
            runner.run(stack.aclose())
