"""DescribeConfigs (32): describe the settings of resources, with the sources and synonyms of their values.

A response contains synonyms and documentation only if the request asks for them. The BROKER resource with an empty name
has the cluster-wide defaults. The settings and loggers of a broker can be requested only from that broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.config.describe import (
    BrokerLayers,
    Described,
    Source,
    describe_broker,
    describe_client_metrics,
    describe_default_broker,
    describe_group,
    describe_topic,
)
from kpybroker.config.log_levels import log_levels
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.names import invalid_topic_name
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.describe_configs import (
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    turns = Turns(broker.long_work)
    results = []
    async for resource in turns.over(request.resources, lambda each: (each.resource_type, each.resource_name)):
        results.append(_answer(broker, resource, request))
        turns.add(len(results[-1].configs))
    return Response(results=results)


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every resource."""
    return Response(results=[_refused(resource, refusal) for resource in request.resources])


def _refused(resource: DescribeConfigsResource, refusal: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=refusal.code,
        error_message=refusal.message or "",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def layers(broker: Broker) -> BrokerLayers:
    """The sources of this broker's settings."""
    image = broker.metadata.image
    return BrokerLayers(
        broker.config,
        image.config(ResourceType.BROKER, str(broker.node_id)),
        image.config(ResourceType.BROKER, ""),
    )


def _answer(broker: Broker, resource: DescribeConfigsResource, request: Request) -> DescribeConfigsResult:
    try:
        entries = _describe(broker, resource.resource_type, resource.resource_name)
    except KafkaError as refusal:
        return _refused(resource, refusal)
    wanted = frozenset(resource.configuration_keys or ())
    return DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[_entry(entry, request) for entry in entries if not wanted or entry.name in wanted],
    )


def _describe(broker: Broker, kind: int, name: str) -> Sequence[Described]:
    image = broker.metadata.image
    match kind:
        case ResourceType.TOPIC:
            reason = invalid_topic_name(name)
            if reason is not None:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
            if image.topic(name) is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            overrides = dict(image.config(ResourceType.TOPIC, image.stored_as(name, 0)[0]))
            if (retirement := image.retirement(name)) is not None:
                overrides |= retirement.settings
            if (view := image.view(name)) is not None:
                overrides = {**image.config(ResourceType.TOPIC, view.source), **view.settings}
            return describe_topic(broker.config, overrides)
        case ResourceType.BROKER:
            if not name:
                return describe_default_broker(layers(broker))
            check_this_broker(broker, name, "or empty string, ")
            return describe_broker(layers(broker))
        case ResourceType.BROKER_LOGGER:
            check_this_broker(broker, name)
            return [
                Described(logger, level, Source.DYNAMIC_BROKER_LOGGER_CONFIG) for logger, level in log_levels().items()
            ]
        case ResourceType.CLIENT_METRICS:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
            return describe_client_metrics(image.config(ResourceType.CLIENT_METRICS, name))
        case ResourceType.GROUP:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return describe_group(layers(broker), image.config(ResourceType.GROUP, name))
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def check_this_broker(broker: Broker, name: str, otherwise: str = "") -> None:
    """Raise INVALID_REQUEST unless `name` is this broker's id."""
    try:
        node_id = int(name)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
    if node_id != broker.node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {broker.node_id} {otherwise}but received {name}",
        )


def _entry(entry: Described, request: Request) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if request.include_synonyms else ())
        ],
        config_type=entry.kind,
        documentation=entry.doc if request.include_documentation else None,
    )
