"""The handlers: one file for each API, with one function `handle(broker, call, request)`.

A handler translates: it calls the parts of the broker and builds the response. `handle` returns a `Result` (see
`kpybroker.call`), and raises KafkaError to refuse the whole request, Damage, or MalformedFrame to close the connection.
A handler module may also have `refuse(request, error)`, which makes the response that refuses the request, for
responses without an error code of their own; and `here(broker, request)`, the rows that this broker answers by itself
before the request is forwarded to the controller.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kpybroker.call import Call
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.wire.api import Api

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def handler_of(api: Api) -> ModuleType:
    """The module that answers this API."""
    return importlib.import_module(f"kpybroker.handlers.{api.module}")


async def answer(broker: Broker, api: Api, call: Call, request: Any) -> Any:
    """The response to a request that did not come over a connection, error responses included."""
    try:
        result = handler_of(api).handle(broker, call, request)
        return await result if inspect.iscoroutine(result) else result
    except KafkaError as refusal:
        return refused(api, request, refusal)
    except Damage as damage:
        return refused(api, request, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)))


def refused(api: Api, request: Any, refusal: KafkaError) -> Any:
    """The error response: from the handler's `refuse`, or a new response with the error code.

    Raises MalformedFrame if the request wants no response (Produce with acks=0).
    """
    refuse = getattr(handler_of(api), "refuse", None)
    if refuse is not None:
        return refuse(request, refusal)
    response = api.response()
    response.error_code = int(refusal.code)
    if hasattr(response, "error_message"):
        response.error_message = refusal.message
    return response
