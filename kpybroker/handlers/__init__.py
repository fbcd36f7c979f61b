"""The handlers: one module for each API, with one function `handle(broker, call, request)`.

`handle` calls the parts of the broker and builds the response. It returns a `Result` (see `kpybroker.call`). It raises
KafkaError to refuse the whole request, Damage if storage fails, or MalformedFrame to close the connection. A handler
module may also have:

- `refuse(request, error)`: builds the response that refuses the request, if the response has no top-level error code.
- `here(broker, request)`: the rows of the response that this broker creates itself, without the controller.
- `before(broker, call, request)`: a response that refuses the request before it is forwarded, or None.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine
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
    """The module in this package that handles an API."""
    return importlib.import_module(f"kpybroker.handlers.{api.module}")


def authorized(api: Api, handle: Handle) -> Handle:
    """The handler, wrapped so that it serves only what the caller is authorized for. The handlers of APIs in
    ASK_THEMSELVES and ASK_NOBODY are returned unchanged."""
    if api.name in ASK_THEMSELVES or api.name in ASK_NOBODY:
        return handle

    def ask_first(broker: Broker, call: Call, request: Any) -> Any:
        if broker.metadata.authorizer is None:
            return handle(broker, call, request)
        from kpybroker.serving import authorization_rules

        return authorization_rules.authorized(broker, api, call, request, handle, partial(refused, api))

    return ask_first


async def answer(broker: Broker, api: Api, call: Call, request: Any, *, is_own: bool = False) -> Any:
    """Handle a request that did not arrive over a connection, and return its response, which may be an error response.

    If `is_own`, this node sent the request itself, and it needs no authorization.
    """
    try:
        handle = handler_of(api).handle
        result = (handle if is_own else authorized(api, handle))(broker, call, request)
        return await result if isinstance(result, Coroutine) else result
    except KafkaError as refusal:
        return refused(api, request, refusal)
    except Damage as damage:
        return refused(api, request, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)))


def refused(api: Api, request: Any, refusal: KafkaError) -> Any:
    """The error response: the result of the handler's `refuse`, otherwise an empty response with the error code.

    Raises MalformedFrame if the request must not have a response (Produce with acks=0).
    """
    refuse = getattr(handler_of(api), "refuse", None)
    if refuse is not None:
        return refuse(request, refusal)
    response = api.response()
    response.error_code = int(refusal.code)
    if hasattr(response, "error_message"):
        response.error_message = refusal.message
    return response
