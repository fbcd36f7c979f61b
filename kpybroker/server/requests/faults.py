"""Faults that tests inject into requests of clients: errors, delays, lost requests and responses, closed connections.

The interceptor is added with the first fault, so a server without faults runs none of this. Requests of brokers and
requests to the controller's listener are never affected, nor are requests with so many elements that they are parsed
over several turns of the loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, NamedTuple

from kpybroker.broker.broker import Broker
from kpybroker.call import CONTROLLER, Reply
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.handlers import refused
from kpybroker.server.connections.connection import Connection
from kpybroker.server.connections.muting import Pauses
from kpybroker.server.connections.port import Dispatch, Encode
from kpybroker.server.requests.node_requests import is_of_a_node
from kpybroker.wire import api as api_table
from kpybroker.wire.codec.codec import parse, parser_at_once
from kpybroker.wire.codec.primitives import ManyElements
from kpybroker.wire.frame import encode_response, parse_request_header, parse_response_header
from kpybroker.wire.plain import Plain, as_plain, groups_in, partitions_in, topics_in, uuid_of

FAULTS_MAX = 1000
LOST_MAX = 1000
"""When this many replies are to be changed or lost, or this many connections hang, those of closed connections are
removed."""
_KEY = Struct(">h").unpack_from
HEAD_BYTES = 8
"""The size and the correlation id of a reply."""

ERROR, DELAY, NO_REPLY, DISCONNECT, LOST_REPLY = "error", "delay", "no_reply", "disconnect", "lost_reply"
TRUNCATED_REPLY, CORRUPT_REPLY, THROTTLE = "truncated_reply", "corrupt_reply", "throttle"
KINDS = {
    ERROR: "the request is not processed and gets an error code",
    DELAY: "the request is processed, and its reply is sent later",
    NO_REPLY: "the request is not processed and gets no reply; its connection hangs until the fault is removed",
    DISCONNECT: "the request is not processed, and its connection is closed",
    LOST_REPLY: "the request is processed, and its connection is closed instead of sending the reply",
    TRUNCATED_REPLY: "the request is processed, and its connection is closed after the first half of the reply",
    CORRUPT_REPLY: "the request is processed, and all bits of its reply after the correlation id are inverted",
    THROTTLE: "the request is processed, and its reply has a throttle time, for which its connection is muted",
}
"""The kinds of faults, with their effects on a request."""


class FaultRule(NamedTuple):
    """The requests that a fault affects, and its effect on them. A field that is None matches every request."""

    api: api_table.Api
    kind: str
    error: ErrorCode = ErrorCode.NONE
    delay_ms: int = 0
    client_id: str | None = None
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    skip: int = 0
    """The number of matching requests that pass first."""
    times: int | None = None
    """The number of requests that are affected after that."""
    probability: float = 1.0

    @property
    def is_scoped(self) -> bool:
        """Whether it depends on the groups, topics or partitions that a request names."""
        return self.group is not None or self.topic is not None or self.partition is not None


class Names(NamedTuple):
    """What a request names, as the functions of `wire/plain.py` return it."""

    groups: list[str]
    topics: list[tuple[str, bool]]
    partitions: list[tuple[tuple[str, bool] | None, set[int]]]


NAMES_NOTHING = Names([], [], [])


def _names_in(fields: Plain) -> Names:
    return Names(groups_in(fields), topics_in(fields), list(partitions_in(fields)))


class Fault:
    """An injected fault and its count."""

    def __init__(self, number: int, rule: FaultRule) -> None:
        self.number = number
        self.rule = rule
        self.hits = 0
        """The number of requests that the fault has affected."""
        self.pauses = Pauses()
        """The delayed replies."""
        self._skipped = 0

    def takes(self, random: Callable[[], float]) -> bool:
        """Whether the fault affects this matching request, which is counted."""
        rule = self.rule
        if rule.times is not None and self.hits >= rule.times:
            return False
        if self._skipped < rule.skip:
            self._skipped += 1
            return False
        if rule.probability < 1 and random() >= rule.probability:
            return False
        self.hits += 1
        return True


class Faults:
    """The interceptor. `on_change` is called when it becomes active or inactive."""

    def __init__(self, broker: Broker, on_change: Callable[[], None]) -> None:
        self._broker = broker
        self._on_change = on_change
        self._numbers = itertools.count(1)
        self._faults: dict[int, Fault] = {}
        self._by_api: dict[int, list[Fault]] = {}
        self._changed: dict[Reply, tuple[Fault, Connection]] = {}
        """The replies that are changed, or lost, when they are encoded."""
        self._hanging: dict[int, list[Connection]] = {}
        self._inner: tuple[Dispatch, Encode]
        """The wrapped functions."""

    @property
    def is_active(self) -> bool:
        """Whether there is a fault."""
        return bool(self._faults)

    def add(self, rule: FaultRule) -> int:
        """Inject a fault and return its number. Raises ValueError if there are FAULTS_MAX."""
        if len(self._faults) >= FAULTS_MAX:
            raise ValueError(f"there are {FAULTS_MAX} faults already; remove some")
        fault = Fault(next(self._numbers), rule)
        self._faults[fault.number] = fault
        self._follow()
        return fault.number

    def hits(self, number: int) -> int:
        """The number of requests that a fault has affected. Raises KeyError."""
        return self._faults[number].hits

    def remove(self, number: int) -> int:
        """Remove a fault: delayed responses are sent, and hanging connections are closed. Returns the number of
        affected requests. Raises KeyError."""
        fault = self._faults.pop(number)
        fault.pauses.stop()
        for connection in self._hanging.pop(number, ()):
            connection.drop("a test's fault ends that left a request without a reply")
        self._follow()
        return fault.hits

    def _follow(self) -> None:
        """Update the interceptor after a change of the faults. The last one takes a request first, because the `with`
        block of a test that began last is the innermost."""
        self._by_api.clear()
        for fault in reversed(self._faults.values()):
            self._by_api.setdefault(fault.rule.api.key, []).append(fault)
        self._on_change()

    def around(self, dispatch: Dispatch, encode: Encode) -> tuple[Dispatch, Encode]:
        """Apply the faults to each request."""
        self._inner = dispatch, encode
        return self._dispatch, self._encode

    def _dispatch(self, connection: Connection, frame: memoryview) -> None:
        dispatch, _ = self._inner
        candidates = self._by_api.get(_KEY(frame)[0])
        if candidates is None or connection.listener.side == CONTROLLER:
            dispatch(connection, frame)
            return
        header, body_at = parse_request_header(frame)
        api = api_table.by_key[header.api_key]
        fault = request = None
        if api.min <= header.api_version <= api.max:
            try:
                request = parser_at_once(api.request, header.api_version)(frame, body_at)
            except ManyElements:
                request = None
        if request is not None and not is_of_a_node(api, header.api_version, request):
            is_scoped = any(each.rule.is_scoped for each in candidates)
            named = _names_in(as_plain(request, header.api_version)) if is_scoped else NAMES_NOTHING
            matching = (each for each in candidates if self._matches(each.rule, header.client_id, named))
            fault = next((each for each in matching if each.takes(self._broker.world.random.random)), None)
        if fault is None:
            dispatch(connection, frame)
            return
        reply = Reply()
        reply.address_to(api, header.api_version, header.correlation_id)
        self._apply(fault, connection, frame, request, reply)

    def _matches(self, rule: FaultRule, client_id: str | None, named: Names) -> bool:
        if rule.client_id is not None and rule.client_id != client_id:
            return False
        if rule.group is not None and rule.group not in named.groups:
            return False
        if rule.partition is not None:
            return any(self._is_of(rule, topic) and rule.partition in indexes for topic, indexes in named.partitions)
        return rule.topic is None or any(self._is_of(rule, topic) for topic in named.topics)

    def _is_of(self, rule: FaultRule, topic: tuple[str, bool] | None) -> bool:
        """Whether a topic that a request names, by its name or its id, is the topic of the rule."""
        if rule.topic is None or topic is None:
            return rule.topic is None
        name, is_id = topic
        return rule.topic == (self._broker.metadata.image.names.get(uuid_of(name)) if is_id else name)

    def _apply(self, fault: Fault, connection: Connection, frame: memoryview, request: Any, reply: Reply) -> None:
        dispatch, _ = self._inner
        rule = fault.rule
        if rule.kind == ERROR:
            try:
                reply.complete(refused(rule.api, request, KafkaError(rule.error, "a test's fault")))
            except MalformedFrame:  # a Produce with acks=0 has no reply, as its broker closes the connection
                connection.close()
                return
            connection.await_reply(reply)
        elif rule.kind == DELAY:
            fault.pauses.begin(connection).start(rule.delay_ms)
            dispatch(connection, frame)
        elif rule.kind == NO_REPLY:
            fault.pauses.begin(connection)
            hanging = self._hanging.get(fault.number, [])
            if len(hanging) >= LOST_MAX:
                hanging = [each for each in hanging if not each.is_closing]
            self._hanging[fault.number] = [*hanging, connection]
        elif rule.kind == DISCONNECT:
            connection.drop("a test's fault")
        else:
            self._dispatch_and_change(fault, connection, frame, reply.address)

    def _dispatch_and_change(self, fault: Fault, connection: Connection, frame: memoryview, address: Any) -> None:
        dispatch, _ = self._inner
        before = connection.last_reply
        dispatch(connection, frame)
        after = connection.last_reply
        if after is None or after is before:  # a Produce with acks=0 has no reply
            return
        if isinstance(after, Reply):
            if len(self._changed) >= LOST_MAX:  # those of closed connections are never encoded
                self._changed = {each: its for each, its in self._changed.items() if not its[1].is_closing}
            self._changed[after] = fault, connection
        else:
            connection.replace_last(self._change(fault, connection, after, address))
        if fault.rule.kind == THROTTLE:
            fault.pauses.begin(connection).start(fault.rule.delay_ms)

    def _encode(self, reply: Reply) -> Sequence[Any]:
        _, encode = self._inner
        affected = self._changed.pop(reply, None)
        buffers = encode(reply)
        return buffers if affected is None else self._change(*affected, buffers, reply.address)

    def _change(
        self, fault: Fault, connection: Connection, buffers: Sequence[Any], address: tuple[api_table.Api, int, int]
    ) -> Sequence[Any]:
        """What is sent in place of an encoded reply."""
        kind, encoded = fault.rule.kind, b"".join(buffers)
        if not encoded and kind != LOST_REPLY:  # a Produce with acks=0 has no reply
            return buffers
        if kind == THROTTLE:
            return _throttled(encoded, address, fault.rule.delay_ms)
        if kind == CORRUPT_REPLY:
            return [encoded[:HEAD_BYTES] + bytes(byte ^ 0xFF for byte in encoded[HEAD_BYTES:])]
        if kind == TRUNCATED_REPLY:
            asyncio.get_running_loop().call_soon(connection.close)
            return [encoded[: len(encoded) // 2]]
        asyncio.get_running_loop().call_soon(connection.drop, "a test's fault loses the reply")
        return ()


def _throttled(encoded: bytes, address: tuple[api_table.Api, int, int], throttle_ms: int) -> Sequence[Any]:
    """The same reply with a throttle time, if this version of the response has one."""
    api, version, correlation_id = address
    frame = memoryview(encoded)[4:]
    _, body_at = parse_response_header(frame, api, version)
    response = parse(api.response, version, frame, body_at)
    response.throttle_time_ms = throttle_ms
    return encode_response(correlation_id, api, version, response)
