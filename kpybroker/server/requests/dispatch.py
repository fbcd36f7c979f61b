"""Dispatches request frames to handlers, encodes their responses, and catches the errors that handlers raise."""

from __future__ import annotations

import asyncio
import importlib
import logging
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import replace
from struct import Struct
from typing import Any, Final, NamedTuple

from kpybroker.broker.broker import Broker
from kpybroker.call import CONTROLLER, Call, Reply, TaskReply
from kpybroker.errors import Damage, ErrorCode, KafkaError, MalformedFrame
from kpybroker.handlers import answer, authorized, handler_of, refused
from kpybroker.server.connections.connection import Connection
from kpybroker.server.connections.connection_limits import ConnectionLimits
from kpybroker.server.connections.writing import SMALL_WRITE_BYTES
from kpybroker.server.requests.forwarding import forwarding
from kpybroker.server.requests.long_requests import LongReply, encoded, has_many_rows, run_long
from kpybroker.server.requests.node_requests import is_of_a_node
from kpybroker.serving.authorization import may_act_as_a_node
from kpybroker.wire import api as api_table
from kpybroker.wire.api import API_VERSIONS, FETCH, PRODUCE
from kpybroker.wire.codec.codec import parser_at_once
from kpybroker.wire.codec.parsing import ELEMENTS_AT_ONCE
from kpybroker.wire.codec.primitives import ManyElements
from kpybroker.wire.encoded import Encoded
from kpybroker.wire.frame import RequestHeader, encode_response, parse_request_header
from kpybroker.wire.request_cache import RepeatingFetch, RepeatingProduce
from kpybroker.wire.response_templates import Filled

log = logging.getLogger(__name__)

_HEAD: Final = Struct(">Ii").unpack_from
REMEMBERED_HEADER_BYTES: Final = 512
_SIZE_AND_ID: Final = Struct(">ii")
SASL_HANDSHAKE: Final = api_table.by_name["SaslHandshake"]
NO_LOGINS: Final = (
    "it requested a SASL login, and this listener has none; set security.protocol=PLAINTEXT (or SSL) in the client"
)


Handle = Callable[[Broker, Call, Any], Any]
Between = Callable[[api_table.Api, Handle], Handle]
HandleLong = Callable[[Connection, int, Reply, Callable[[], Any]], Any]
"""Called with the connection, the size of the frame in bytes, the reply and a call of the handler; returns its result.
"""


class Route:
    """An API and its handler, which is loaded with the first request. `count` is the number of requests."""

    __slots__ = ("_own", "api", "count", "handle")

    def __init__(self, api: api_table.Api) -> None:
        handler = handler_of(api)
        handle, here = handler.handle, getattr(handler, "here", None)
        self.api = api
        self.count = 0
        if here is not None:  # authorization must also cover the rows of the response that this broker creates itself
            self._own: Handle = authorized(api, forwarding(api, handle, here))
        else:
            mine = authorized(api, handle)
            before = getattr(handler, "before", None)
            self._own = forwarding(api, mine, before=before) if api.is_forwarded else mine
        self.handle: Handle = self._own

    def go_through(self, between: Between | None) -> None:
        """Wrap the handler with `between`; None removes the wrapper."""
        self.handle = self._own if between is None else between(self.api, self._own)


class Known(NamedTuple):
    """The parsed header of an earlier request of the same connection. Equal headers differ only in the correlation
    id."""

    route: Route
    call: Call
    parse: Callable[[Any, int], Any]
    body_at: int
    rest_of_header: bytes


class Dispatcher:
    """Executes the requests of all connections of one broker."""

    def __init__(self, broker: Broker, limits: ConnectionLimits) -> None:
        self._broker = broker
        self._limits = limits
        self.routes: dict[int, Route] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self._between: Between | None = None
        self._handle_long: HandleLong = _handle_long

    def stand_between(self, between: Between | None, handle_long: HandleLong | None = None) -> None:
        """Wrap all handlers, or remove their wrappers."""
        self._between = between
        self._handle_long = handle_long or _handle_long
        for route in self.routes.values():
            route.go_through(between)

    async def answer_here(self, name: str, request: Any) -> Any:
        """Handle a request that this node sends to itself as the active controller, without a connection."""
        api = api_table.by_name[name]
        call = Call(api.key, api.max, None, "127.0.0.1", 0, side=CONTROLLER)
        return await answer(self._broker, api, call, request, is_own=True)

    def run(self, connection: Connection, frame: memoryview) -> None:
        """Handle one request frame. Raises MalformedFrame."""
        key_and_version, correlation_id = _HEAD(frame)
        known: Known | None = connection.known.get(key_and_version)
        is_new = known is None or frame[8 : known.body_at] != known.rest_of_header
        if known is None or is_new:
            known = self._recognise(connection, frame)
            if known is None:
                return
        route = known.route
        try:
            request = known.parse(frame, known.body_at)
        except ManyElements:
            self._run_long(connection, known, frame, correlation_id, is_new=is_new)
            return
        except MalformedFrame as malformed:
            raise MalformedFrame(f"{route.api.name} v{known.call.version}: {malformed}") from malformed
        if is_new and not self._is_welcome(connection, route.api, known.call, request):
            return
        route.count += 1
        try:
            result = route.handle(self._broker, known.call, request)
            if not isinstance(result, Reply) and isinstance(result, Coroutine):
                result = self._drive(connection, known, request, result)
        except KafkaError as refusal:
            result = refused(route.api, request, refusal)
        except MalformedFrame:
            raise
        except Damage as damage:
            result = refused(route.api, request, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)))
        except Exception:
            log.exception("bug in the handler of %s, called by %s", route.api.name, connection.peer)
            connection.close()
            return
        if isinstance(result, Reply):
            result.address_to(route.api, known.call.version, correlation_id)
            connection.await_reply(result)
        elif result is not None:
            connection.answer(_buffers(route.api, known.call.version, correlation_id, result))

    def _is_welcome(self, connection: Connection, api: api_table.Api, call: Call, request: Any) -> bool:
        """Register whether a node or a client sent the request. Return whether the connection is still open."""
        if api is SASL_HANDSHAKE and call.listener not in self._broker.config.sasl_listeners:
            connection.tell_refusal(NO_LOGINS)
        if is_of_a_node(api, call.version, request) and may_act_as_a_node(self._broker, call):
            self._limits.is_a_node(connection)
        elif connection.on_probation and api is not API_VERSIONS:
            self._limits.is_a_client(connection)
        return not connection.is_closing

    def _run_long(
        self, connection: Connection, known: Known, frame: memoryview, correlation_id: int, *, is_new: bool
    ) -> None:
        """Process a request with many elements over several turns of the event loop."""
        route, call = known.route, replace(known.call, is_long=True)
        api = route.api
        if api.elements <= ELEMENTS_AT_ONCE:
            raise MalformedFrame(f"{api.name} v{call.version}: more than {api.elements} elements")
        route.count += 1
        reply = LongReply()
        reply.address_to(api, call.version, correlation_id)
        size_bytes = len(frame)

        def handle(request: Any) -> Any:
            if is_new and not self._is_welcome(connection, api, call, request):
                return None
            return self._handle_long(connection, size_bytes, reply, lambda: route.handle(self._broker, call, request))

        work = run_long(self._broker.long_work, api, call.version, frame, known.body_at, handle, reply)
        reply.cancel_if_abandoned(self._begin(connection, route, None, work, reply))
        connection.await_reply(reply)

    def _recognise(self, connection: Connection, frame: memoryview) -> Known | None:
        """Parse a whole header and cache it, because a connection sends the same few headers repeatedly."""
        header, body_at = parse_request_header(frame)
        api = api_table.by_key.get(header.api_key)
        at = connection.listener
        if api is None or at.side not in api.listens.value:
            raise MalformedFrame(f"api key {header.api_key} is not served on listener {at.name}")
        version = header.api_version
        low, high = self._broker.membership.served_versions.accepted(api, header.client_id)
        if not low <= version <= high:
            self._refuse_version(connection, api, header, (low, high))
            return None
        route = self.routes.get(api.key)
        if route is None:
            route = self.routes[api.key] = Route(api)
            route.go_through(self._between)
        call = Call(
            api.key,
            version,
            header.client_id,
            connection.host,
            connection.number,
            at.name,
            at.side,
            principal=connection.principal,
        )
        parse: Callable[[memoryview, int], Any] = parser_at_once(api.request, version)
        if api is PRODUCE and version >= api.flexible:
            parse = RepeatingProduce(parse)
        elif api is FETCH and version >= api.flexible:
            parse = RepeatingFetch(parse, version)
        known = Known(route, call, parse, body_at, bytes(frame[8:body_at]))
        if body_at <= REMEMBERED_HEADER_BYTES and version >= 0:
            connection.known[api.key << 16 | version] = known
        return known

    def _drive(self, connection: Connection, known: Known, request: Any, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine up to its first wait. It becomes a task only if it does wait."""
        try:
            waits_for = work.send(None)
        except StopIteration as finished:
            if not has_many_rows(finished.value):
                return finished.value
            rest = encoded(self._broker.long_work, known.call.version, finished.value)
        else:
            rest = self._rest(known.call.version, work, waits_for)
        # the records of a Produce are views of the receive buffer
        reply = TaskReply(holds_frame=known.route.api is PRODUCE)
        task = self._begin(connection, known.route, request, rest, reply)
        if reply.holds_frame and request.acks:
            # Nothing has been appended yet. With acks=0 the task continues, because the producer may close the
            # connection as soon as it has sent the request.
            reply.cancel_if_abandoned(task)
        return reply

    async def _rest(self, version: int, work: Coroutine[Any, Any, Any], waits_for: Any) -> Any:
        """The response of a coroutine that has yielded its first future. A large response is encoded over several turns
        of the event loop."""
        return await encoded(self._broker.long_work, version, await _resumed(work, waits_for))

    def _begin(
        self, connection: Connection, route: Route, request: Any, work: Coroutine[Any, Any, Any], reply: Reply
    ) -> asyncio.Task[Any]:
        """Run a coroutine as a task that completes a reply."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)

        def done(finished: asyncio.Task[Any]) -> None:
            self.tasks.discard(finished)
            if finished.cancelled():
                return
            error = finished.exception()
            if error is None:
                result = finished.result()
                if isinstance(result, Reply) and isinstance(reply, TaskReply):
                    reply.follow(result)
                else:
                    reply.complete(result)
            elif isinstance(error, KafkaError | Damage):
                if isinstance(error, Damage):
                    error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
                try:
                    reply.complete(refused(route.api, request, error))
                except MalformedFrame as unwanted:
                    connection.refuse_frame(str(unwanted))
            elif isinstance(error, MalformedFrame):
                connection.refuse_frame(str(error))
            else:
                log.error("bug in the handler of %s, called by %s", route.api.name, connection.peer, exc_info=error)
                connection.close()

        task.add_done_callback(done)
        return task

    async def stop(self) -> None:
        """Cancel the tasks that are still running, because their connections are being closed."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _refuse_version(
        self, connection: Connection, api: api_table.Api, header: RequestHeader, served: tuple[int, int]
    ) -> None:
        low, high = served
        if high < 0:
            raise MalformedFrame(f"{api.name} is not served (kpybroker.api.versions)")
        if api is not API_VERSIONS:
            raise MalformedFrame(f"{api.name} is served in versions {low} to {high}, not in {header.api_version}")
        unsupported = api.response(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                importlib.import_module("kpybroker.wire.rpc.api_versions").ApiVersion(
                    api_key=api.key, min_version=low, max_version=high
                )
            ],
        )
        connection.answer(encode_response(header.correlation_id, api, 0, unsupported))


def _handle_long(_connection: Connection, _size_bytes: int, _reply: Reply, handle: Callable[[], Any]) -> Any:
    return handle()


def encode(reply: Reply) -> Sequence[Any]:
    """The buffers of a complete reply; none if no response is sent."""
    response = reply.response
    if response is None:
        return ()
    api, version, correlation_id = reply.address
    return _buffers(api, version, correlation_id, response)


def _buffers(api: api_table.Api, version: int, correlation_id: int, response: Any) -> Sequence[Any]:
    if isinstance(response, Filled):
        return response.buffers(correlation_id)
    if isinstance(response, Encoded):
        flexible = version >= api.flexible
        head = _SIZE_AND_ID.pack(len(response) + (5 if flexible else 4), correlation_id) + b"\0" * flexible
        return [head + response] if len(response) < SMALL_WRITE_BYTES else [head, response]
    return encode_response(correlation_id, api, version, response)


@types.coroutine
def _resumed(work: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Continue a coroutine that has already yielded its first future."""
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
