"""One request answered by its handler, refusals included: for requests that come by other ways than a connection."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kpybroker.call import Call
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.wire.api import Api

if TYPE_CHECKING:
    from kpybroker.broker import Broker


def handler_of(api: Api) -> ModuleType:
    """The module that answers this API."""
    return importlib.import_module(f"kpybroker.handlers.{api.module}")


async def answer(broker: Broker, api: Api, call: Call, request: Any) -> Any:
    """The response."""
    try:
        result = handler_of(api).handle(broker, call, request)
        return await result if inspect.iscoroutine(result) else result
    except KafkaError as refusal:
        return refused(api, request, refusal)
    except Damage as damage:
        return refused(api, request, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)))


def refused(api: Api, request: Any, refusal: KafkaError) -> Any:
    """The response that says so: the handler's `refuse`, or the code in a new response.

    Raises MalformedFrame where the request wants no answer (Produce with acks=0).
    """
    refuse = getattr(handler_of(api), "refuse", None)
    if refuse is not None:
        return refuse(request, refusal)
    response = api.response()
    response.error_code = int(refusal.code)
    if hasattr(response, "error_message"):
        response.error_message = refusal.message
    return response
