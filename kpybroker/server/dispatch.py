"""From a frame to a handler and back: the Api table, the header, the one guard around handlers."""

from __future__ import annotations

import asyncio
import importlib
import logging
import types
from collections.abc import Callable, Coroutine, Generator
from struct import Struct
from typing import TYPE_CHECKING, Any

from kpybroker.call import Call, Encoded, Reply
from kpybroker.errors import Damage, ErrorCode, KafkaError, MalformedFrame
from kpybroker.wire import api as api_table
from kpybroker.wire.frame import encode_response, skip_tags
from kpybroker.wire.message import parser

if TYPE_CHECKING:
    from kpybroker.broker import Broker
    from kpybroker.server.connection import Connection

log = logging.getLogger(__name__)

_HEADER = Struct(">hhih").unpack_from
_HEADER_BYTES = 10
_SIZE_AND_ID = Struct(">ii")
API_VERSIONS = 18


class Route:
    """One row of the table, bound to its handler and parsers on first use."""

    __slots__ = ("api", "handle", "parsers", "refuse")

    def __init__(self, api: api_table.Api) -> None:
        module = importlib.import_module(f"kpybroker.handlers.{api.module}")
        self.api = api
        self.handle: Callable[[Broker, Call, Any], Any] = module.handle
        self.refuse: Callable[[Any, KafkaError], Any] | None = getattr(module, "refuse", None)
        self.parsers: dict[int, Callable[[memoryview, int], Any]] = {}

    def parser(self, version: int) -> Callable[[memoryview, int], Any]:
        found = self.parsers.get(version)
        if found is None:
            found = self.parsers[version] = parser(self.api.request, version)
        return found


class Dispatcher:
    """Runs requests of all connections of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._routes: dict[int, Route] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.requests = broker.metrics.requests

    def run(self, connection: Connection, frame: memoryview) -> None:
        """Handle one request frame. Raises MalformedFrame."""
        key, version, correlation_id, client_bytes = _HEADER(frame) if len(frame) >= _HEADER_BYTES else _short(frame)
        route = self._routes.get(key) or self._bind(key)
        api = route.api
        if not api.min <= version <= api.max:
            self._refuse_version(connection, api, version, correlation_id)
            return
        position = _HEADER_BYTES
        client = b""
        if client_bytes > 0:
            position += client_bytes
            client = bytes(frame[_HEADER_BYTES:position])
            if len(client) != client_bytes:
                raise MalformedFrame("the client id is longer than its frame")
        elif client_bytes < -1:
            raise MalformedFrame(f"client id of length {client_bytes}")
        if version >= api.flexible:
            position = skip_tags(frame, position)
        request = route.parser(version)(frame, position)
        call = connection.calls.get((key, version, client))
        if call is None:
            call = _remember(connection, key, version, client, client_bytes)
        self.requests[key] = self.requests.get(key, 0) + 1
        self._answer(connection, route, call, request, correlation_id)

    def _answer(self, connection: Connection, route: Route, call: Call, request: Any, correlation_id: int) -> None:
        address = (route.api, call.version, correlation_id)
        try:
            result = route.handle(self._broker, call, request)
            if isinstance(result, types.CoroutineType):
                result = self._drive(connection, route, request, result)
        except KafkaError as refusal:
            result = _refusal(route, request, refusal)
        except MalformedFrame:
            raise
        except Damage as damage:
            result = _refusal(route, request, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)))
        except Exception:
            log.exception("bug in the handler of %s v%d, called by %s", route.api.name, call.version, connection.peer)
            connection.close()
            return
        if isinstance(result, Reply):
            result.address = address
            connection.await_reply(result)
        elif result is not None:
            connection.answer(_buffers(route.api, call.version, correlation_id, result))

    def _drive(self, connection: Connection, route: Route, request: Any, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine's first step in place; only one that really waits becomes a task."""
        try:
            waits_for = work.send(None)
        except StopIteration as finished:
            return finished.value
        reply = Reply()
        task = asyncio.get_running_loop().create_task(_rest(work, waits_for))
        self._tasks.add(task)

        def done(finished: asyncio.Task[Any]) -> None:
            self._tasks.discard(finished)
            if finished.cancelled():
                return
            error = finished.exception()
            if error is None:
                reply.complete(finished.result())
            elif isinstance(error, KafkaError):
                reply.complete(_refusal(route, request, error))
            elif isinstance(error, Damage):
                reply.complete(_refusal(route, request, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))))
            elif isinstance(error, MalformedFrame):
                connection.refuse_frame(str(error))
            else:
                log.error("bug in the handler of %s, called by %s", route.api.name, connection.peer, exc_info=error)
                connection.close()

        task.add_done_callback(done)
        return reply

    async def stop(self) -> None:
        """End what still waits; its connections are closing."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _bind(self, key: int) -> Route:
        api = api_table.by_key.get(key)
        if api is None:
            raise MalformedFrame(f"api key {key} is not served")
        route = self._routes[key] = Route(api)
        return route

    def _refuse_version(self, connection: Connection, api: api_table.Api, version: int, correlation_id: int) -> None:
        if api.key != API_VERSIONS:
            raise MalformedFrame(f"{api.name} is served in versions {api.min} to {api.max}, not in {version}")
        unsupported = api.response(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                importlib.import_module("kpybroker.wire.rpc.api_versions").ApiVersion(
                    api_key=api.key, min_version=api.min, max_version=api.max
                )
            ],
        )
        connection.answer(encode_response(correlation_id, api, 0, unsupported))


def encode(reply: Reply) -> list[Any] | None:
    """The buffers of a complete reply; None where none is sent."""
    if reply.response is None:
        return None
    api, version, correlation_id = reply.address
    return _buffers(api, version, correlation_id, reply.response)


def _buffers(api: api_table.Api, version: int, correlation_id: int, response: Any) -> list[Any]:
    if isinstance(response, Encoded):
        flexible = version >= api.flexible
        head = _SIZE_AND_ID.pack(len(response) + (5 if flexible else 4), correlation_id)
        return [head + b"\0" + response if flexible else head + response]
    return encode_response(correlation_id, api, version, response)


def _refusal(route: Route, request: Any, refusal: KafkaError) -> Any:
    if route.refuse is not None:
        return route.refuse(request, refusal)
    response = route.api.response()
    if not hasattr(response, "error_code"):
        raise refusal
    response.error_code = int(refusal.code)
    if hasattr(response, "error_message"):
        response.error_message = refusal.message
    return response


def _short(frame: memoryview) -> tuple[int, int, int, int]:
    raise MalformedFrame(f"a frame of {len(frame)} bytes has no request header")


def _remember(connection: Connection, key: int, version: int, client: bytes, client_bytes: int) -> Call:
    try:
        client_id = client.decode() if client_bytes >= 0 else None
    except UnicodeDecodeError:
        raise MalformedFrame("the client id is not UTF-8") from None
    if len(connection.calls) > 256:
        connection.calls.clear()
    call = Call(key, version, client_id, connection.host, connection.number)
    connection.calls[key, version, client] = call
    return call


@types.coroutine
def _rest(work: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that has already yielded its first future."""
    while True:
        try:
            sent = yield waits_for
        except BaseException as thrown:  # noqa: BLE001 - handed to the coroutine, whoever's it is
            try:
                waits_for = work.throw(thrown)
            except StopIteration as finished:
                return finished.value
        else:
            try:
                waits_for = work.send(sent)
            except StopIteration as finished:
                return finished.value
