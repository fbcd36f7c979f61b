"""The client side of a connection to a broker, for the command line and for connections between brokers.

`ask` encodes and sends a request, and waits for its response. Requests may be pipelined; responses arrive in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Any, cast

from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.wire import api as api_table
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.frame import encode_request, parse_response_header
from kpybroker.world import Network
from kpybroker.world.secure import TlsContext

_SIZE = Struct(">i")
REPLY_LIMIT_BYTES = 256 * 1024 * 1024
"""The largest valid response in bytes. A larger size means that the peer does not use Kafka's protocol."""
IN_FLIGHT_MAX = 1024
"""The most requests in flight on one connection. More of them would be a bug in the caller."""


class Peer(asyncio.Protocol):
    """One TCP connection. Create it with `Peer.dial` or a `Dialer`, send requests with `ask`, and end it with
    `close`."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: deque[tuple[int, api_table.Api, int, asyncio.Future[Any]]] = deque()
        self._correlation_id = 0
        self._lost: Exception | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.versions: dict[int, tuple[int, int]] = {}
        """The range of versions that the broker advertises, by API key; empty before `negotiate`."""
        self._renewal: Callable[[str], Awaitable[None]] | None = None

    @classmethod
    async def dial(
        cls, network: Network, host: str, port: int, *, client_id: str = "kpybroker", tls: TlsContext | None = None
    ) -> Peer:
        """Connect. Raises OSError."""
        _, protocol = await network.connect(lambda: cls(client_id), host, port, tls)
        assert isinstance(protocol, Peer)
        return protocol

    @property
    def is_open(self) -> bool:
        """Whether the connection is established and can send requests."""
        return self._transport is not None and self._lost is None and not self._transport.is_closing()

    def renew_with(self, renewal: Callable[[str], Awaitable[None]]) -> None:
        """Set a function that is awaited before each request with the name of its API, so that it can renew the
        login."""
        self._renewal = renewal

    async def negotiate(self) -> None:
        """Send ApiVersions (KIP-35). After that, `ask` uses the highest version that both sides support.

        Raises KafkaError if the broker refuses.
        """
        response = await self.ask("ApiVersions", version=0)
        if response.error_code:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"ApiVersions returned the code {response.error_code}")
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}

    def best_version(self, api: api_table.Api) -> int:
        """The highest version that both sides support. Raises MalformedFrame if there is none."""
        low, high = self.versions.get(api.key, (api.min, api.max) if not self.versions else (1, 0))
        best = min(high, api.max)
        if best < max(low, api.min):
            raise MalformedFrame(f"the broker serves no version of {api.name} that this client supports")
        return best

    async def ask(self, name: str, request: Any = None, *, version: int | None = None) -> Any:
        """The response to a request; `request` defaults to an empty one. Raises ConnectionError, MalformedFrame.

        If the call is cancelled or times out, a late response is dropped, and the connection can still be used.
        """
        api = api_table.by_name[name]
        if self._renewal is not None:
            await self._renewal(name)
        if self._transport is None or not self.is_open:
            raise ConnectionError("the connection is closed") from self._lost
        assert len(self._waiting) < IN_FLIGHT_MAX, "too many requests in flight on a connection"
        if version is None:
            version = self.best_version(api)
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        buffers = encode_request(
            self._correlation_id, api, version, api.request() if request is None else request, self._client_id
        )
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._correlation_id, api, version, reply))
        self._transport.write(b"".join(buffers))
        return await reply

    async def send(self, name: str, request: Any, *, version: int | None = None) -> None:
        """Send a request that has no response: a Produce with acks=0. Raises ConnectionError."""
        api = api_table.by_name[name]
        if self._renewal is not None:
            await self._renewal(name)
        if self._transport is None or not self.is_open:
            raise ConnectionError("the connection is closed") from self._lost
        version = self.best_version(api) if version is None else version
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        self._transport.write(b"".join(encode_request(self._correlation_id, api, version, request, self._client_id)))
        if not self._writable.is_set():
            await self._writable.wait()
            if self._lost is not None:
                raise ConnectionError("the connection is closed") from self._lost

    def close(self) -> None:
        """Close the connection. Requests in flight raise ConnectionError."""
        if self._transport is not None:
            self._transport.close()

    # ---- methods that asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not derive from it

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost is None:
            self._fail(exc or ConnectionError("the broker closed the connection"))
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = _SIZE.unpack_from(self._received)
            if not 4 <= size <= REPLY_LIMIT_BYTES:
                self._fail(MalformedFrame(f"a reply of {size} bytes"))
                self.close()
                return
            if len(self._received) < 4 + size:
                return
            with memoryview(self._received) as received:
                frame = bytes(received[4 : 4 + size])
            del self._received[: 4 + size]
            self._take(memoryview(frame))
            if self._lost is not None:
                return

    def _take(self, frame: memoryview) -> None:
        if not self._waiting:
            self._fail(MalformedFrame("a reply without a request"))
            self.close()
            return
        expected, api, version, reply = self._waiting.popleft()
        try:
            correlation_id, position = parse_response_header(frame, api, version)
            if correlation_id != expected:
                raise MalformedFrame(f"reply has correlation id {correlation_id}, expected {expected}")
            answer = parse(api.response, version, frame, position)
        except MalformedFrame as malformed:
            if not reply.done():
                reply.set_exception(malformed)
            self._fail(malformed)
            self.close()
            return
        if not reply.done():
            reply.set_result(answer)

    def _fail(self, why: Exception) -> None:
        self._lost = why
        while self._waiting:
            reply = self._waiting.popleft()[3]
            if not reply.done():
                # a plain ConnectionError, because the caller would take a BrokenPipeError for an error of its own
                # stdout
                reply.set_exception(why if isinstance(why, MalformedFrame) else ConnectionError(str(why)))
