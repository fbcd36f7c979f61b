"""Enforces client quotas: a response to a client above its quota contains the throttle time (KIP-219).

This interceptor is active only while a quota is set; `follow` activates and deactivates it. A client's request is
charged when it has been handled. A Fetch is charged when its response is encoded, because its size is unknown before
that. If a Fetch exceeds the quota, an empty response is sent instead and nothing is charged. The records of an empty
ShareFetch response would stay acquired, so a client that has used up its quota acquires nothing, and any other client
gets the records that it acquired and is then throttled. Responses are sent without delay, and then the connection is
muted for the throttle time. Requests between brokers are not charged.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from struct import Struct
from typing import Any

from kpybroker.broker.broker import Broker
from kpybroker.call import CONTROLLER, Call, Reply, response_of
from kpybroker.errors import KafkaError
from kpybroker.handlers import refused
from kpybroker.metadata.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from kpybroker.metrics import Metrics
from kpybroker.quotas.clients import ClientQuotas
from kpybroker.scheduled.delivery_logs import CLIENT_ID as DELIVERY_CLIENT
from kpybroker.server.connections.connection import Connection
from kpybroker.server.connections.muting import Pause, Pauses
from kpybroker.server.connections.port import Dispatch, Encode
from kpybroker.server.requests.node_requests import is_of_a_broker
from kpybroker.serving.authorization import may_act_as_a_node
from kpybroker.serving.fetch.throttled import quiet_answer
from kpybroker.wire.api import FETCH, PRODUCE, SHARE_FETCH, Api, Audience
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.codec.layout import layout
from kpybroker.wire.encoded import Encoded
from kpybroker.wire.response_templates import Filled
from kpybroker.world.stopwatch import perf_counter

PERCENT = 100.0
"""The request percentage that stands for the whole time of one thread."""
_TIME = Struct(">i")
_BODY_AT = 8
"""The offset of the message in a response frame, without the tagged fields of flexible headers."""


class Charge:
    """One request that is charged to its client."""

    __slots__ = (
        "api",
        "call",
        "connection",
        "pause",
        "request_bytes",
        "session_epoch",
        "spent_s",
        "unanswered",
        "wait_ms",
    )

    def __init__(self, api: Api, call: Call, connection: Connection, request_bytes: int) -> None:
        self.api = api
        self.call = call
        self.connection = connection
        self.request_bytes = request_bytes
        self.spent_s = 0.0
        self.wait_ms = 0
        self.pause: Pause | None = None
        self.session_epoch = 0
        """The session epoch of a Fetch. It is stored here because the request object may be reused before the response
        is sent."""
        self.unanswered = False
        """Whether the request is a Produce with acks=0, which has no response."""


class Throttling:
    """The interceptor that charges requests to their clients. It is active while there is a quota for requests.

    `stand_between` wraps the handlers with `_charging`, or unwraps them. `on_change` is called when the interceptor
    becomes active or inactive. `stopwatch` returns seconds.
    """

    def __init__(
        self,
        broker: Broker,
        metrics: Metrics,
        stand_between: Callable[..., None],
        on_change: Callable[[], None],
        stopwatch: Callable[[], float] = perf_counter,
    ) -> None:
        self._broker = broker
        self._metrics = metrics
        self._quotas: ClientQuotas = broker.quotas
        self._stand_between = stand_between
        self._on_change = on_change
        self._stopwatch = stopwatch
        self.pauses = Pauses()
        self.is_active = False
        self._inner: tuple[Dispatch, Encode]
        """The wrapped functions."""
        self._dispatched: tuple[Connection, int] | None = None
        """The connection whose frame is being dispatched, and the size of the frame."""
        self._charge: Charge | None = None
        """The charge of that frame."""

    def around(self, dispatch: Dispatch, encode: Encode) -> tuple[Dispatch, Encode]:
        """Charge each request when it is processed, and put the throttle time into its response."""
        self._inner = dispatch, encode
        return self._dispatch, self._encode

    def follow(self) -> None:
        """Become active if there is a quota for requests, otherwise inactive."""
        wanted = bool(self._quotas.of_requests)
        if wanted == self.is_active:
            return
        self.is_active = wanted
        if wanted:
            self._stand_between(self._charging, self._handle_long)
        else:
            self._stand_between(None)
            self.pauses.end_all()
        self._on_change()

    # ---- one request

    def _dispatch(self, connection: Connection, frame: memoryview) -> None:
        dispatch, _ = self._inner
        if not self.is_active:  # the last quota was removed while the connection was processing several frames
            dispatch(connection, frame)
            return
        outer = self._dispatched, self._charge  # a handler may let another connection continue: dispatches nest
        self._dispatched, self._charge = (connection, len(frame)), None
        before = connection.last_reply
        try:
            dispatch(connection, frame)
            charge, reply = self._charge, connection.last_reply
        finally:
            self._dispatched, self._charge = outer
        if charge is None:
            return
        if isinstance(reply, Reply) and reply is not before:
            reply.attach(charge)
            if charge.wait_ms and charge.api is not FETCH:
                charge.pause = self.pauses.begin(connection)
        elif charge.wait_ms:
            self._pause(charge)

    def _handle_long(self, connection: Connection, size_bytes: int, reply: Reply, handle: Callable[[], Any]) -> Any:
        """Like `_dispatch`, for a request that is parsed over several turns. The charge is attached to `reply`."""
        outer = self._dispatched, self._charge
        self._dispatched, self._charge = (connection, size_bytes), None
        try:
            result, charge = handle(), self._charge
        finally:
            self._dispatched, self._charge = outer
        if charge is not None:
            reply.attach(charge)
            if charge.wait_ms and charge.api is not FETCH:
                charge.pause = self.pauses.begin(connection)
        return result

    def _charging(self, api: Api, handle: Callable[..., Any]) -> Callable[..., Any]:
        """The handler, wrapped so that its work is charged to the client."""
        if api.audience is Audience.BROKER:
            return handle

        def charged(broker: Broker, call: Call, request: Any) -> Any:
            dispatched = self._dispatched
            if dispatched is None or call.side == CONTROLLER:
                return handle(broker, call, request)
            is_brokers = is_of_a_broker(api, call.version, request) or call.client_id == DELIVERY_CLIENT
            if is_brokers and may_act_as_a_node(broker, call):
                return handle(broker, call, request)
            charge = self._charge = Charge(api, call, *dispatched)
            if api is FETCH:
                request = self._limited(call, request)
                charge.session_epoch = request.session_epoch
            elif api is SHARE_FETCH:
                request = self._limited_share(charge, request)
            charge.unanswered = api is PRODUCE and request.acks == 0
            began = self._stopwatch()
            try:
                result = handle(broker, call, request)
            except KafkaError as refusal:
                result = refused(api, request, refusal)
            charge.spent_s = self._stopwatch() - began
            if isinstance(result, Coroutine):
                return self._awaited(charge, request, result)
            self._decide(charge)
            if api in (FETCH, SHARE_FETCH) and not isinstance(result, Reply):
                answered = Reply()
                answered.complete(result)
                return answered
            return result if isinstance(result, Reply) else self._told(charge, result)

        return charged

    async def _awaited(self, charge: Charge, request: Any, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            result = await _Measured(work, charge, self._stopwatch)
            if isinstance(result, Reply):
                if charge.api.strict_from is None:
                    self._decide(charge)
                    return result  # the throttle time is put into the response when it is encoded
                result = await response_of(result)
        except KafkaError as refusal:
            result = refused(charge.api, request, refusal)
        self._decide(charge)
        if charge.api.strict_from is not None:  # the active controller has already set a throttle time
            result = _spelled_out(charge, result)
            charge.wait_ms = max(charge.wait_ms, result.throttle_time_ms)
        return self._told(charge, result)

    def _limited(self, call: Call, request: Any) -> Any:
        """A Fetch whose size is limited to the bytes that its client may receive at once without being throttled.
        Otherwise its response could exceed the quota every time."""
        most = self._quotas.most_at_once(CONSUMER_BYTE_RATE, call.client_id, call.principal.name)
        if most is None or request.max_bytes <= most:
            return request
        limited = copy(request)
        limited.max_bytes = int(most)
        limited.min_bytes = min(request.min_bytes, limited.max_bytes)
        return limited

    def _limited_share(self, charge: Charge, request: Any) -> Any:
        """A ShareFetch that acquires nothing if its client has used up its quota, else at most what the client may get
        without throttling. Its acknowledgements are not limited."""
        call = charge.call
        charge.wait_ms = self._quotas.charge(CONSUMER_BYTE_RATE, call.client_id, 0, call.principal.name)
        limited = self._limited(call, request)
        if charge.wait_ms:
            limited = copy(request)
            limited.max_records = limited.max_wait_ms = 0
        return limited

    def _decide(self, charge: Charge) -> None:
        """Compute the throttle time, except for the bytes of a Fetch response."""
        quotas, client_id, user = self._quotas, charge.call.client_id, charge.call.principal.name
        if quotas.has(REQUEST_PERCENTAGE) and not charge.unanswered:
            wait_ms = quotas.charge(REQUEST_PERCENTAGE, client_id, charge.spent_s * PERCENT, user)
            charge.wait_ms = max(charge.wait_ms, wait_ms)
        if charge.api is PRODUCE:
            bytes_wait_ms = quotas.charge(PRODUCER_BYTE_RATE, client_id, charge.request_bytes, user)
            charge.wait_ms = max(charge.wait_ms, bytes_wait_ms)

    # ---- the response

    def _encode(self, reply: Reply) -> Sequence[Any]:
        _, encode = self._inner
        if not self.is_active or type(reply.attached) is not Charge:
            return encode(reply)
        charge = reply.attached
        if charge.api is FETCH:
            buffers = encode(reply)
            self._decide_fetch(charge, sum(map(len, buffers)))
            if not charge.wait_ms:
                return buffers
            reply.replace(quiet_answer(self._broker, charge.session_epoch, reply.response, charge.wait_ms))
        elif charge.api is SHARE_FETCH:
            buffers = encode(reply)
            wait_ms = self._quotas.charge(
                CONSUMER_BYTE_RATE, charge.call.client_id, sum(map(len, buffers)), charge.call.principal.name
            )
            charge.wait_ms = max(charge.wait_ms, wait_ms)
            if not charge.wait_ms:
                return buffers
        if charge.wait_ms:
            reply.replace(self._told(charge, reply.response))
            self._pause(charge)
        return encode(reply)

    def _decide_fetch(self, charge: Charge, response_bytes: int) -> None:
        client_id, user = charge.call.client_id, charge.call.principal.name
        wait_ms = self._quotas.charge(CONSUMER_BYTE_RATE, client_id, response_bytes, user)
        charge.wait_ms = max(charge.wait_ms, wait_ms)
        if charge.wait_ms:
            self._quotas.take_back(CONSUMER_BYTE_RATE, client_id, response_bytes, user)

    def _told(self, charge: Charge, response: Any) -> Any:
        """The response, with the throttle time in it."""
        if not charge.wait_ms or response is None:
            return response
        if isinstance(response, Encoded) and _begins_with_the_time(charge):
            return Encoded(_TIME.pack(charge.wait_ms) + response[_TIME.size :])
        response = _spelled_out(charge, response)
        if hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = charge.wait_ms
        return response

    def _pause(self, charge: Charge) -> None:
        self._metrics.request_throttled()
        if charge.pause is None:
            charge.pause = self.pauses.begin(charge.connection)
        charge.pause.start(charge.wait_ms)


def _begins_with_the_time(charge: Charge) -> bool:
    """Whether the throttle time is the first field of this response, as in nearly all responses."""
    members = layout(charge.api.response, charge.call.version).members
    return bool(members) and members[0][0] == "throttle_time_ms"


def _spelled_out(charge: Charge, response: Any) -> Any:
    """The response as an object that can be changed. Encoded responses and templates are parsed."""
    api, version = charge.api, charge.call.version
    if isinstance(response, Encoded):
        return parse(api.response, version, memoryview(response))
    if isinstance(response, Filled):
        frame = b"".join(response.buffers(0))
        return parse(api.response, version, memoryview(frame), _BODY_AT + (version >= api.flexible))
    return response


class _Measured:
    """An awaitable that runs a coroutine, measures the time of its steps, and returns its result."""

    def __init__(self, work: Coroutine[Any, Any, Any], charge: Charge, stopwatch: Callable[[], float]) -> None:
        self._work = work
        self._charge = charge
        self._stopwatch = stopwatch

    def __await__(self) -> _Measured:
        return self

    def __iter__(self) -> _Measured:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        began = self._stopwatch()
        try:
            return self._work.send(value)
        finally:
            self._charge.spent_s += self._stopwatch() - began

    def throw(self, *thrown: Any) -> Any:
        return self._work.throw(*thrown)

    def close(self) -> None:
        self._work.close()
