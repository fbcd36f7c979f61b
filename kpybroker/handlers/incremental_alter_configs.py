"""IncrementalAlterConfigs (44): set, delete, append to or subtract from individual settings (KIP-339).

Log levels (BROKER_LOGGER) apply to this process only and are not stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.config.log_levels import check_log_level, set_log_level
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import (
    AlterOp,
    ChangeConfigs,
    ConfigResult,
    IncrementalAlterConfigs,
)
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.handlers.alter_configs import (
    check_forwarded,
    check_store_changes,
    merged,
    of_a_broker,
    refused_alike,
    told,
)
from kpybroker.handlers.describe_configs import check_this_broker
from kpybroker.serving.fair_loop import SLICE, Turns, decided, slices
from kpybroker.wire.rpc.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    turns = Turns(broker.long_work)
    first = of_a_broker(request.resources)
    settled = [
        None if call.forwarded else _settled(broker, resource, request, first)
        async for resource in turns.through(request.resources)
    ]
    asked = [resource for resource, result in zip(request.resources, settled, strict=True) if result is None]
    answers = await decided(
        broker,
        asked,
        lambda some: IncrementalAlterConfigs(
            tuple(_change(resource) for resource in some), request.validate_only, call.host
        ),
        broker.config.request_timeout_ms,
    )
    responses: list[AlterConfigsResourceResponse] = []
    for some in slices(merged(settled, answers)):
        responses += told(AlterConfigsResourceResponse, some)
        if len(some) == SLICE:
            await turns.turn()
    return Response(responses=responses)


def here(broker: Broker, request: Request) -> dict[int, AlterConfigsResourceResponse]:
    """The rows of the response that this broker creates without the controller, by the index of the resource."""
    first = of_a_broker(request.resources)
    settled = ((at, _settled(broker, resource, request, first)) for at, resource in enumerate(request.resources))
    return {at: told(AlterConfigsResourceResponse, [result])[0] for at, result in settled if result is not None}


def refuse(request: Request, refusal: KafkaError) -> Response:
    return Response(responses=told(AlterConfigsResourceResponse, refused_alike(request.resources, refusal)))


def _settled(
    broker: Broker, resource: AlterConfigsResource, request: Request, first: AlterConfigsResource | None
) -> ConfigResult | None:
    """The result if this broker can determine it; None if the controller has to."""
    kind, name = resource.resource_type, resource.resource_name
    try:
        if kind == ResourceType.BROKER:
            if name:
                check_this_broker(broker, name)
            if resource is first:
                check_store_changes(broker, {each.name: _set(each) for each in resource.configs})
            check_forwarded(broker, _change(resource))
        elif kind == ResourceType.BROKER_LOGGER:
            check_this_broker(broker, name)
            _change_log_levels(resource, request.validate_only)
            return ConfigResult(kind, name)
    except KafkaError as refusal:
        return ConfigResult(kind, name, refusal.code, refusal.message)
    return None


def _change_log_levels(resource: AlterConfigsResource, validate_only: bool) -> None:
    levels: dict[str, str | None] = {}
    for config in resource.configs:
        if config.config_operation not in (AlterOp.SET, AlterOp.DELETE):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Log levels can be set and deleted, nothing else.")
        levels[config.name] = _set(config)
    for name, level in levels.items():
        check_log_level(name, level)
    if not validate_only:
        for name, level in levels.items():
            set_log_level(name, level)


def _set(config: AlterableConfig) -> str | None:
    """The new value; None if the setting is deleted."""
    return config.value if config.config_operation == AlterOp.SET else None


def _change(resource: AlterConfigsResource) -> ChangeConfigs:
    return ChangeConfigs(
        resource.resource_type,
        resource.resource_name,
        tuple((config.name, config.config_operation, config.value) for config in resource.configs),
    )
