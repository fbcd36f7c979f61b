"""ListConfigResources (74): list the resources that can have settings. v0 lists only client metrics subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc.list_config_resources import ConfigResource, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

LISTED = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)


def handle(broker: Broker, call: Call, request: Request) -> Response:
    wanted: Sequence[int] = (ResourceType.CLIENT_METRICS,) if call.version == 0 else request.resource_types or LISTED
    if any(kind not in LISTED for kind in wanted):
        return Response(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return Response(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in dict.fromkeys(wanted)
            for name in _names(broker, kind)
        ]
    )


def _names(broker: Broker, kind: int) -> list[str]:
    image = broker.metadata.image
    if kind == ResourceType.TOPIC:
        return list(image.readable)
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(node_id) for node_id, known in image.brokers.items() if not known.fenced]
    return [name for resource_type, name in image.configs if resource_type == kind]
