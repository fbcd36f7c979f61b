"""AlterConfigs (33): the settings named become the only ones of a resource, all others are reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import AlterConfigs, ConfigResult, ReplaceConfigs, ResourceType
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.handlers.describe_configs import check_this_broker
from kpybroker.wire.rpc.alter_configs import AlterConfigsResource, AlterConfigsResourceResponse, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    refused = {} if call.forwarded else here(broker, request)
    asked = [resource for at, resource in enumerate(request.resources) if at not in refused]
    command = AlterConfigs(tuple(_replace(resource) for resource in asked), request.validate_only)
    decided = iter(await broker.controller.ask(command, broker.config.request_timeout_ms))
    return Response(
        responses=[refused[at] if at in refused else row(next(decided)) for at in range(len(request.resources))]
    )


def here(broker: Broker, request: Request) -> dict[int, AlterConfigsResourceResponse]:
    """What the broker that is asked refuses by itself, by the place of the resource."""
    refused = ((at, _refused(broker, resource)) for at, resource in enumerate(request.resources))
    return {at: row(result) for at, result in refused if result is not None}


def row(result: ConfigResult) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=result.error_code,
        error_message=result.error_message,
        resource_type=result.resource_type,
        resource_name=result.resource_name,
    )


def refuse(request: Request, refusal: KafkaError) -> Response:
    return Response(
        responses=[
            AlterConfigsResourceResponse(
                error_code=refusal.code,
                error_message=refusal.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
    )


def _refused(broker: Broker, resource: AlterConfigsResource) -> ConfigResult | None:
    kind, name = resource.resource_type, resource.resource_name
    try:
        if kind == ResourceType.BROKER and name:
            check_this_broker(broker, name)
        elif kind == ResourceType.BROKER_LOGGER:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "Log levels are changed one by one: use IncrementalAlterConfigs."
            )
    except KafkaError as refusal:
        return ConfigResult(kind, name, refusal.code, refusal.message)
    return None


def _replace(resource: AlterConfigsResource) -> ReplaceConfigs:
    return ReplaceConfigs(
        resource.resource_type,
        resource.resource_name,
        tuple((config.name, config.value) for config in resource.configs),
    )
