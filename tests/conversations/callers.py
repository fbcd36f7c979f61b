"""The connections of scripted peers and clients to the node, one for each connection of the recording."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from kpybroker.sim.world.loop import Owner
from kpybroker.sim.world.network import Fabric, SimNetwork
from kpybroker.wire.frame import parse_response_header, request_head
from oracle.tape import advertised
from tests.conversations.lines import Line
from tests.conversations.script import Exchange

PATIENCE_S = 3.0
"""The virtual time for which a peer tries to connect."""
AGAIN_S = 0.01


class Callers:
    """`owners`: the owner of each peer. `node`: the address of the node."""

    def __init__(self, fabric: Fabric, owners: Mapping[int, Owner], node: tuple[str, int]) -> None:
        self._fabric = fabric
        self._owners = owners
        self._node = node
        self._lines: dict[int, Line] = {}
        self._waiting: dict[int, deque[tuple[Exchange, asyncio.Future[bytes]]]] = {}
        self._sources: dict[int, int] = {}

    async def send(
        self, said: Exchange, body: Callable[[], bytes], has_stopped: Callable[[], bool]
    ) -> asyncio.Future[bytes] | None:
        """Send a request, and return the future response; None if the node does not listen any more."""
        line = self._lines.get(said.connection)
        if line is None or not line.is_open:
            line = await self._connect(said, has_stopped)
            if line is None:
                return None
        told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[said.connection].append((said, told))
        line.send(request_head(said.begun, said.api, said.version, said.client_id) + body())
        return told

    async def _connect(self, said: Exchange, has_stopped: Callable[[], bool]) -> Line | None:
        waiting: deque[tuple[Exchange, asyncio.Future[bytes]]] = deque()

        def take(line: Line, frame: bytes) -> None:
            exchange, told = waiting.popleft()
            _, position = parse_response_header(memoryview(frame), exchange.api, exchange.version)
            if not told.done():
                told.set_result(frame[position:])

        loop, owner = self._fabric.loop, self._owners[said.source]
        deadline = loop.time() + PATIENCE_S
        while True:
            try:
                with loop.acting(owner):
                    network = SimNetwork(self._fabric, advertised(said.source), owner)
                    _, made = await network.connect(lambda: Line(take), *self._node)
                break
            except ConnectionRefusedError:
                if has_stopped() or loop.time() > deadline:
                    return None
                await asyncio.sleep(AGAIN_S)
        assert isinstance(made, Line)
        self._lines[said.connection], self._waiting[said.connection] = made, waiting
        self._sources[said.connection] = said.source
        return made

    def is_open(self, said: Exchange) -> bool:
        """Whether the connection of this request is open."""
        line = self._lines.get(said.connection)
        return line is not None and line.is_open

    def hang_up(self, node: int) -> None:
        """Close the connections of a peer."""
        for number in [number for number, source in self._sources.items() if source == node]:
            del self._sources[number], self._waiting[number]
            self._lines.pop(number).transport.close()
