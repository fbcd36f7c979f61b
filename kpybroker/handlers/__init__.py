"""The handlers: one file for each API, with one function `handle(broker, call, request)`.

A handler translates: it calls the parts of the broker and builds the response. `handle` returns a `Result` (see
`kpybroker.call`), and raises KafkaError to refuse the whole request, Damage, or MalformedFrame to close the connection.
A handler module may also have:

- `refuse(request, error)`: builds the response that refuses the request, if the response has no top-level error code.
- `here(broker, request)`: the rows that this broker answers itself before it forwards the request to the controller.
- `before(broker, call, request)`: a response that refuses the request instead of forwarding it, or None.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kpybroker.call import Call
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.serving.authorization import ASK_NOBODY, ASK_THEMSELVES
from kpybroker.wire.api import Api

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


Handle = Callable[["Broker", Call, Any], Any]


def handler_of(api: Api) -> ModuleType:
    """The module that handles this API."""
    return importlib.import_module(f"kpybroker.handlers.{api.module}")


def authorized(api: Api, handle: Handle) -> Handle:
    """The handler; if there is an authorizer, the handler answers only what the caller is authorized for."""
    if api.name in ASK_THEMSELVES or api.name in ASK_NOBODY:
        return handle

    def ask_first(broker: Broker, call: Call, request: Any) -> Any:
        if broker.metadata.authorizer is None:
            return handle(broker, call, request)
        from kpybroker.serving import authorization_rules

        return authorization_rules.authorized(broker, api, call, request, handle, partial(refused, api))

    return ask_first


async def answer(broker: Broker, api: Api, call: Call, request: Any, *, is_own: bool = False) -> Any:
    """The response to a request that did not come over a connection, error responses included.

    `is_own`: the request is this node's own and needs no authorization.
    """
    try:
        handle = handler_of(api).handle
        result = (handle if is_own else authorized(api, handle))(broker, call, request)
        return await result if inspect.iscoroutine(result) else result
    except KafkaError as refusal:
        return refused(api, request, refusal)
    except Damage as damage:
        return refused(api, request, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)))


def refused(api: Api, request: Any, refusal: KafkaError) -> Any:
    """The error response: from the handler's `refuse`, or a new response with the error code.

    Raises MalformedFrame if the request must not be answered (Produce with acks=0).
    """
    refuse = getattr(handler_of(api), "refuse", None)
    if refuse is not None:
        return refuse(request, refusal)
    response = api.response()
    response.error_code = int(refusal.code)
    if hasattr(response, "error_message"):
        response.error_message = refusal.message
    return response
