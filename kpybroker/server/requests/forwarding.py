"""Forwards admin requests of clients to the active controller in an Envelope (KIP-590)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from kpybroker.broker.envelopes import forwarded
from kpybroker.call import CONTROLLER, Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.api import Api
from kpybroker.wire.codec.codec import build_in_turns, parse
from kpybroker.wire.encoded import Encoded

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

Handle = Callable[["Broker", Call, Any], Any]

Here = Callable[["Broker", Any], dict[int, Any]]
"""For requests with `resources`: returns the rows of the response that this broker creates itself, by resource
index."""
Before = Callable[["Broker", Call, Any], Any]
"""Returns a response that refuses the request; None to forward the request."""


def forwarding(api: Api, handle: Handle, here: Here | None = None, before: Before | None = None) -> Handle:
    """A handler that executes a request if this node is the active controller, and forwards it otherwise.

    Requests on a controller listener are never forwarded. If this node is not the active controller, their response is
    NOT_CONTROLLER, because such clients find the active controller by themselves.
    """

    def here_or_there(broker: Broker, call: Call, request: Any) -> Any:
        if call.side == CONTROLLER:
            return handle(broker, call, request)
        if broker.controller.is_active:
            told = handle(broker, call, request)
            return _unless_moved(broker, api, call, request, told) if isawaitable(told) else told
        refusal = None if before is None else before(broker, call, request)
        if refusal is not None:
            return refusal
        settled = None if here is None else here(broker, request)
        if settled:
            return _forward_rest(broker, api, call, request, settled)
        return _forward(broker, api, call, request)

    return here_or_there


async def _unless_moved(broker: Broker, api: Api, call: Call, request: Any, told: Awaitable[Any]) -> Any:
    """This node's response or, if another node has become the active controller in the meantime, the response of that
    node."""
    try:
        answered = await told
        if not api.has_error(answered, ErrorCode.NOT_CONTROLLER):
            return answered
    except KafkaError as refusal:
        if refusal.code is not ErrorCode.NOT_CONTROLLER:
            raise
    return await _forward(broker, api, call, request)


async def _forward(broker: Broker, api: Api, call: Call, request: Any) -> Encoded:
    """The active controller's response, unchanged. Raises REQUEST_TIMED_OUT, or the error in the Envelope response."""
    body = await broker.long_work.through(build_in_turns(request, call.version))
    async with broker.long_work.outside():
        told = await forwarded(
            broker.membership.channel, api, call.version, call, body, broker.config.request_timeout_ms
        )
    return Encoded(told)


async def _forward_rest(broker: Broker, api: Api, call: Call, request: Any, settled: dict[int, Any]) -> Any:
    """The response with the rows of this broker, and the controller's rows for all other resources."""
    count = len(request.resources)
    rest = [resource for at, resource in enumerate(request.resources) if at not in settled]
    told: Iterator[Any] = iter(())
    if rest:
        asked = api.request(resources=rest, validate_only=request.validate_only)
        told = iter(parse(api.response, call.version, await _forward(broker, api, call, asked)).responses)
    return api.response(responses=[settled[at] if at in settled else next(told) for at in range(count)])
