"""Fetches one small page over HTTP, on the event loop. The number of reads, the size and the time are limited.

As with Java's URL class, which Apache Kafka uses, redirects to another scheme are not followed. Proxies are not used.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, cast

import h11

from kpybroker.config.http_url import HttpUrl
from kpybroker.world import Network
from kpybroker.world.secure import TlsContext

BODY_MAX_BYTES = 1 << 20
HEADERS_MAX_BYTES = 65_536
PIECES_MAX = 4096
"""The most pieces of a response, because each piece takes time, no matter how small it is."""
REDIRECTS_MAX = 20
PATIENCE_S = 20.0
"""The time limit for everything, including redirects."""
REDIRECTS = (301, 302, 303, 307)
OK = 200


class Answer(NamedTuple):
    """A response. `location` is the target of a redirect."""

    status: int
    location: str
    body: bytes


async def http_get(network: Network, url: HttpUrl, tls: TlsContext | None) -> bytes:
    """Return the page at an address. `tls` is used for https. Raises OSError with the reason."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await _followed(network, url, tls)
    except TimeoutError:
        raise OSError(f"no response within {PATIENCE_S:.0f} s") from None


async def _followed(network: Network, url: HttpUrl, tls: TlsContext | None) -> bytes:
    scheme = url.scheme
    for _ in range(REDIRECTS_MAX + 1):
        answer = await _exchange(network, url, tls)
        if answer.status == OK:
            return answer.body
        if answer.status not in REDIRECTS or not answer.location:
            raise OSError(f"{url.authority} returned status {answer.status}")
        try:
            url = url.followed(answer.location)
        except ValueError as error:
            raise OSError(f"a redirect has an invalid address: {error}") from None
        if url.scheme != scheme:
            raise OSError(f"a redirect from {scheme} to {url.scheme} is not followed")
    raise OSError(f"more than {REDIRECTS_MAX} redirects")


async def _exchange(network: Network, url: HttpUrl, tls: TlsContext | None) -> Answer:
    transport, protocol = await network.connect(lambda: _Exchange(url), url.host, url.port, tls)
    try:
        return await cast(_Exchange, protocol).answer
    finally:
        transport.abort()


class _Exchange(asyncio.Protocol):
    """One request and its response."""

    def __init__(self, url: HttpUrl) -> None:
        self._url = url
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEADERS_MAX_BYTES)
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._status, self._location = 0, ""
        self._body = bytearray()
        self._pieces = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        headers = [
            ("Host", self._url.authority),
            ("Accept", "application/json, */*"),
            ("Cache-Control", "no-cache"),
            ("User-Agent", "kpybroker"),
            ("Connection", "close"),
        ]
        request = h11.Request(method="GET", target=self._url.target, headers=headers)
        data = (self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b"")
        cast(asyncio.Transport, transport).write(data)  # uvloop's transports do not derive from it

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._take(b"")
        self._fail(OSError(f"the connection was closed before the response was complete: {exc or 'no reason given'}"))

    def _take(self, data: bytes) -> None:
        if self.answer.done():
            return
        try:
            self._http.receive_data(data)
            while not self.answer.done():
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                self._take_event(event)
        except h11.RemoteProtocolError as wrong:
            self._fail(OSError(f"the response is not HTTP: {wrong}"))

    def _take_event(self, event: object) -> None:
        self._pieces += 1
        if self._pieces > PIECES_MAX:
            self._fail(OSError(f"the response has more than {PIECES_MAX} pieces"))
            return
        if isinstance(event, h11.Response):
            self._status = event.status_code
            self._location = next((value.decode("latin-1") for name, value in event.headers if name == b"location"), "")
            if self._status != OK:
                self.answer.set_result(Answer(self._status, self._location, b""))
        elif isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > BODY_MAX_BYTES:
                self._fail(OSError(f"the response is larger than {BODY_MAX_BYTES} bytes"))
        elif isinstance(event, h11.EndOfMessage):
            self.answer.set_result(Answer(self._status, self._location, bytes(self._body)))
        elif isinstance(event, h11.ConnectionClosed):
            self._fail(OSError("the connection was closed before the response was complete"))

    def _fail(self, error: OSError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
