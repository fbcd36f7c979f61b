"""Connections to the other brokers of the cluster: one for each broker, opened on demand, reopened after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kpybroker.client.dialer import Dialer
from kpybroker.client.peer import Peer
from kpybroker.errors import MalformedFrame

LOST = (OSError, MalformedFrame, TimeoutError)
"""The exceptions that a request raises when its connection fails. (ConnectionError is a kind of OSError.)"""
DIAL_TIMEOUT_S = 1.0


class BrokerConnections:
    """Sends requests to other brokers. `address`: returns the address of a broker id, None if unknown."""

    def __init__(self, dialer: Dialer, client_id: str, address: Callable[[int], tuple[str, int] | None]) -> None:
        self._dialer = dialer
        self._client_id = client_id
        self._address = address
        self._peers: dict[int, tuple[tuple[str, int], asyncio.Task[Peer]]] = {}
        self._is_closed = False

    async def ask(self, node_id: int, name: str, request: Any, timeout_ms: int) -> Any:
        """The response of a broker. Must be called in a task, because it has a timeout. Raises the exceptions in
        LOST."""
        async with asyncio.timeout(timeout_ms / 1000):
            peer = await self._connected(node_id)
            answered = False
            try:
                answer = await peer.ask(name, request)
                answered = True
            finally:
                if not answered:
                    peer.close()  # the request timed out or was cancelled, but its reply may still arrive
        return answer

    async def _connected(self, node_id: int) -> Peer:
        address = self._address(node_id)
        if self._is_closed:
            raise ConnectionError("the connections to other brokers are closed")
        if address is None:
            raise ConnectionError(f"the address of broker {node_id} is unknown")
        known = self._peers.get(node_id)
        if known is not None and known[0] == address and _is_good(known[1]):
            dialling = known[1]
        else:
            self._hang_up(node_id)
            dialling = asyncio.get_running_loop().create_task(self._dial(address))
            self._peers[node_id] = (address, dialling)
        await asyncio.wait([dialling])  # the connection attempt may be cancelled without its waiters being cancelled
        if dialling.cancelled():
            raise ConnectionError("the connection attempt was cancelled")
        return dialling.result()

    async def _dial(self, address: tuple[str, int]) -> Peer:
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            return await self._dialer.meet(*address, client_id=self._client_id)

    def _hang_up(self, node_id: int) -> None:
        known = self._peers.pop(node_id, None)
        if known is None:
            return
        dialled = known[1]
        if not dialled.done():
            dialled.cancel()
        elif not dialled.cancelled() and dialled.exception() is None:
            dialled.result().close()

    def close(self) -> None:
        """Close all connections; requests in progress receive no response."""
        self._is_closed = True
        for node_id in list(self._peers):
            self._hang_up(node_id)


def _is_good(dialled: asyncio.Task[Peer]) -> bool:
    if not dialled.done():
        return True
    return not dialled.cancelled() and dialled.exception() is None and dialled.result().is_open
