"""Sends a broker's requests to the active controller, over a connection or directly if it is on the same node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from kpybroker.client.dialer import Dialer
from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.wire.api import by_name

log = logging.getLogger(__name__)

BACKOFF_MS = 20
BACKOFF_MAX_MS = 500
IN_VAIN_MS = 3000
"""The time for which a request waits for a controller while a majority of the voters cannot be reached."""
DIAL_TIMEOUT_MS = 1000
"""The timeout for a connection and its ApiVersions. A node of the cluster that is running responds within this time."""
NOBODY_LEADS = "the quorum has no leader"
ASKED_MAX = 1000
"""The most requests at a time. Further requests are refused."""


class ControllerAddress(Protocol):
    """The address of the active controller."""

    @property
    def node_id(self) -> int: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class ActiveController(Protocol):
    """The part of the quorum that the channel uses: the address of the active controller, or the reason why there is
    none."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def active_controller(self) -> ControllerAddress | None: ...

    @property
    def no_leader_reason(self) -> str | None: ...

    @property
    def lacks_majority(self) -> bool: ...

    def on_leadership(self, callback: Callable[[], None]) -> None: ...


class ControllerChannel:
    """One connection to the active controller. It is opened on demand, and again when another node becomes the
    controller."""

    def __init__(self, dialer: Dialer, quorum: ActiveController, client_id: str) -> None:
        self._dialer = dialer
        self._quorum = quorum
        self._client_id = client_id
        self._peer: Peer | None = None
        self._peer_at: tuple[str, int] | None = None
        self._dialling: asyncio.Task[Peer] | None = None
        self._changed = asyncio.Event()
        self._limits: dict[asyncio.Timeout, None] = {}
        """The timeouts of the requests that wait for a response on the connection."""
        self._asked = 0
        self._closed = False
        self._here: Callable[[str, Any], Awaitable[Any]] | None = None
        quorum.on_leadership(self._leadership_changed)

    def answer_here(self, answer: Callable[[str, Any], Awaitable[Any]]) -> None:
        """Let `answer` handle the requests while this node is the active controller."""
        self._here = answer

    async def ask(self, name: str, request: Any, timeout_ms: int, *, try_ms: int | None = None) -> Any:
        """Send a request to the active controller and return its response. If another node has become the controller,
        or the controller cannot be reached, the request is sent again.

        try_ms: the time after which a connection without a response is closed. Raises REQUEST_TIMED_OUT. This happens
        before timeout_ms if the voters that can be reached are too few to elect a controller.
        """
        if self._asked >= ASKED_MAX:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"{ASKED_MAX} requests are waiting for the controller already"
            )
        self._asked += 1
        try:
            if self._quorum.is_leader and self._here is not None:
                answer = await self._here(name, request)
                if not by_name[name].has_error(answer, ErrorCode.NOT_CONTROLLER):
                    return answer
            # timeouts need a task, and a handler's first step runs outside any task
            return await asyncio.get_running_loop().create_task(
                self._ask(name, request, timeout_ms, try_ms or timeout_ms)
            )
        finally:
            self._asked -= 1

    async def _ask(self, name: str, request: Any, timeout_ms: int, try_ms: int) -> Any:
        loop = asyncio.get_running_loop()
        end, backoff_ms = loop.time() + timeout_ms / 1000, BACKOFF_MS
        begun, why = loop.time(), NOBODY_LEADS
        while not self._closed:
            self._changed.clear()
            left_s = end - loop.time()
            if left_s <= 0:
                break
            try:
                answer = await self._try(name, request, min(left_s, try_ms / 1000))
            except (OSError, MalformedFrame, TimeoutError) as failed:  # ConnectionError is an OSError
                why = str(failed) or type(failed).__name__
            else:
                if answer is not None and not by_name[name].has_error(answer, ErrorCode.NOT_CONTROLLER):
                    return answer
                why = "no node is the active controller" if answer is not None else self._why_nobody
            if self._quorum.lacks_majority and loop.time() - begun >= IN_VAIN_MS / 1000:
                why = self._why_nobody
                break
            await self._pause(min(backoff_ms / 1000, max(end - loop.time(), 0)))
            backoff_ms = min(backoff_ms * 2, BACKOFF_MAX_MS)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the active controller did not respond to {name}: {why}")

    @property
    def _why_nobody(self) -> str:
        found = self._quorum.no_leader_reason
        return NOBODY_LEADS if found is None else f"{NOBODY_LEADS}, {found}"

    async def _try(self, name: str, request: Any, try_s: float) -> Any:
        """Send the request once, and return the response; None if no active controller is known. Raises OSError,
        MalformedFrame, TimeoutError."""
        if self._quorum.is_leader and self._here is not None:
            return await self._here(name, request)
        address = self._quorum.active_controller
        if address is None or self._quorum.is_leader:
            return None
        at = (address.host, address.port)
        try:
            async with asyncio.timeout(try_s) as limit:
                self._limits[limit] = None
                peer = await self._connected(at)
                return await peer.ask(name, request)
        except TimeoutError:
            if self._peer is not None and self._peer_at == at and not self._changed.is_set():
                self._peer.close()  # the request has timed out
            raise
        finally:
            self._limits.pop(limit, None)

    def _leadership_changed(self) -> None:
        """Let waiting requests be sent again, because the previous controller may never respond."""
        self._changed.set()
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(now)

    async def _connected(self, at: tuple[str, int]) -> Peer:
        if self._peer is not None and self._peer.is_open and self._peer_at == at:
            return self._peer
        if self._dialling is None or self._peer_at != at:
            self._hang_up()
            self._peer_at = at
            self._dialling = asyncio.get_running_loop().create_task(self._dial(at))
            self._dialling.add_done_callback(self._dialled)
        dialling = self._dialling
        await asyncio.wait([dialling])  # its cancellation must not cancel this request
        if dialling.cancelled():
            raise ConnectionError("the controller changed during the connection attempt")
        return dialling.result()

    def _dialled(self, dialling: asyncio.Task[Peer]) -> None:
        failed = dialling.cancelled() or dialling.exception() is not None
        if self._dialling is not dialling:
            if not failed:
                dialling.result().close()
            return
        self._dialling = None
        if not failed:
            self._peer = dialling.result()

    def _hang_up(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
            self._dialling = None
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    async def _dial(self, at: tuple[str, int]) -> Peer:
        async with asyncio.timeout(DIAL_TIMEOUT_MS / 1000):
            return await self._dialer.meet(*at, client_id=self._client_id)

    async def _pause(self, pause_s: float) -> None:
        """Wait for this time, or until the leader of the quorum changes."""
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """Close the connection. Waiting requests fail."""
        self._closed = True
        self._leadership_changed()
        self._hang_up()
