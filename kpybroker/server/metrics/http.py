"""A small HTTP server for probes and scrapes: GET and HEAD of a few paths, one request per connection.

h11 parses the requests and limits their memory. The server runs on the broker's event loop, so a response shows that
the loop is running.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import h11

if TYPE_CHECKING:
    from kpybroker.world import Listener, Network
    from kpybroker.world.secure import TlsAcceptor

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 64
"""The maximum number of connections. A further connection replaces the oldest idle one."""
PER_HOST_MAX = 48
"""The maximum number of connections from one address. A further one replaces the oldest idle one from that address."""
REQUEST_LIMIT_BYTES = 8192
"""The maximum size of a request line and its headers."""
RECEIVED_BYTES_MAX = 256 << 10
"""The maximum number of bytes in one read."""
REQUEST_PATIENCE_S = 2.0
"""The time within which the whole request must arrive."""
PATIENCE_S = 10.0
"""The time limit for a connection."""
TEXT = "text/plain; charset=utf-8"
METHODS = ("GET", "HEAD")


class Page(NamedTuple):
    """A response. `body` is sent unchanged."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


Answer = Callable[[Mapping[str, str]], Awaitable[Page]]
"""Returns the page for a GET request. The argument contains the headers, with names in lower case."""
TLS_HANDSHAKE = b"\x16\x03"
"""The first bytes that a client sends if it uses TLS."""


class Guard(Protocol):
    """Decides who may read the pages. `tls` is None if they are served without TLS."""

    tls: TlsAcceptor | None

    def refuse(self, path: str, host: str, headers: Mapping[str, str]) -> Page | None:
        """The response that refuses a request from this address; None if the request is allowed."""

    def spoke_tls(self, host: str) -> None:
        """Called if a client at this address used TLS although the pages are served without TLS."""


class HttpServer:
    """Serves pages. `paths` maps each path to the function that returns its page. Call `start`, then `close`."""

    def __init__(self, network: Network, paths: Mapping[str, Answer]) -> None:
        self._network = network
        self.paths = paths
        self.guard: Guard | None = None
        self.open: dict[HttpConnection, None] = {}
        self.buffer = bytearray(RECEIVED_BYTES_MAX)
        """The receive buffer. All connections use it, one at a time."""
        self._listener: Listener | None = None

    async def start(self, host: str, port: int, guard: Guard | None = None) -> int:
        """Listen, and return the port. Without a guard, every client may read every page. Raises OSError."""
        self.guard = guard
        tls = None if guard is None else guard.tls
        self._listener = await self._network.listen(lambda: HttpConnection(self), host, port, tls)
        return self._listener.port

    def admit(self, connection: HttpConnection) -> bool:
        """Whether a new connection may stay. If there are too many connections, an idle one is closed."""
        for most, of_one_host in ((PER_HOST_MAX, True), (CONNECTIONS_MAX, False)):
            others = [other for other in self.open if not of_one_host or other.host == connection.host]
            if len(others) < most:
                continue
            idle = next((other for other in others if not other.is_under_way), None)
            if idle is None:
                return False
            del self.open[idle]
            idle.abort()
        self.open[connection] = None
        return True

    def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.open):
            connection.abort()


class HttpConnection(asyncio.BufferedProtocol):
    """One connection, which serves a single request."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_LIMIT_BYTES)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_answered = False
        self.host = "?"

    @property
    def is_under_way(self) -> bool:
        """Whether the request is being processed."""
        return self._task is not None and not self._is_answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass of Transport
        self.host = str((transport.get_extra_info("peername") or ("?",))[0])
        if not self._server.admit(self):
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(REQUEST_PATIENCE_S, self._look_whether_asked)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._transport = None

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._server.buffer[:nbytes])
        if self._is_answered or self._task is not None:
            return  # each connection serves a single request
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as wrong:
            if data.startswith(TLS_HANDSHAKE) and self._server.guard is not None:
                self._server.guard.spoke_tls(self.host)
            self._send(Page(wrong.error_status_hint, f"{wrong}\n".encode()), with_body=True)
            return
        if isinstance(event, h11.Request):
            self._take(event)
        elif event is not h11.NEED_DATA:
            self.abort()

    def _look_whether_asked(self) -> None:
        if self._task is None and not self._is_answered:
            self.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(PATIENCE_S - REQUEST_PATIENCE_S, self.abort)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _take(self, request: h11.Request) -> None:
        method = request.method.decode("ascii")
        path = request.target.partition(b"?")[0].decode("latin-1")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in request.headers}
        answer = self._server.paths.get(path)
        if answer is None:
            known = " ".join(self._server.paths)
            self._send(Page(404, f"no such page; try {known}\n".encode()), with_body=method != "HEAD")
        elif method not in METHODS:
            allowed = (("Allow", ", ".join(METHODS)),)
            self._send(Page(405, b"this page supports only GET and HEAD\n", headers=allowed), with_body=True)
        elif headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            self._send(Page(400, b"a GET or HEAD request must not have a body\n"), with_body=method != "HEAD")
        elif (guard := self._server.guard) and (refusal := guard.refuse(path, self.host, headers)) is not None:
            self._send(refusal, with_body=method != "HEAD")
        else:
            self._task = asyncio.get_running_loop().create_task(self._answer(answer, headers, method != "HEAD"))
            self._task.add_done_callback(self._answered)

    async def _answer(self, answer: Answer, headers: Mapping[str, str], with_body: bool) -> None:
        self._send(await answer(headers), with_body)

    def _answered(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("bug in the handler of an HTTP request", exc_info=bug)
            self.abort()

    def _send(self, page: Page, with_body: bool) -> None:
        """Send the whole response and close the connection. Further requests are not read."""
        transport, self._is_answered = self._transport, True
        if transport is None:
            return
        head = [("Content-Type", page.content_type), ("Content-Length", str(len(page.body))), ("Connection", "close")]
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            transport.abort()
            return
        response = h11.Response(status_code=page.status, headers=[*head, *page.headers], reason=_reason(page.status))
        transport.write(self._http.send(response) or b"")
        if with_body:
            transport.write(page.body)
        transport.close()


def _reason(status: int) -> bytes:
    return _REASONS.get(status, "").encode("ascii")


_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
