"""AlterConfigs (33): replace all settings of a resource; settings that are not named are reset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kpybroker.call import Call
from kpybroker.config.listener_limits import is_listener_store
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import (
    AlterConfigs,
    ChangeConfigs,
    ConfigResult,
    ReplaceConfigs,
)
from kpybroker.controller.configs import check_broker_change
from kpybroker.errors import ConfigError, ErrorCode, KafkaError
from kpybroker.handlers.describe_configs import check_this_broker
from kpybroker.security.tls.contexts import check_stores
from kpybroker.serving.fair_loop import SLICE, Turns, decided, slices
from kpybroker.wire.rpc.alter_configs import AlterConfigsResource, AlterConfigsResourceResponse, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

T = TypeVar("T", bound=Any)


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    turns = Turns(broker.long_work)
    first = of_a_broker(request.resources)
    settled = [
        None if call.forwarded else _refused(broker, resource, first)
        async for resource in turns.through(request.resources)
    ]
    asked = [resource for resource, result in zip(request.resources, settled, strict=True) if result is None]
    answers = await decided(
        broker,
        asked,
        lambda some: AlterConfigs(tuple(_replace(resource) for resource in some), request.validate_only, call.host),
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
    settled = ((at, _refused(broker, resource, first)) for at, resource in enumerate(request.resources))
    return {at: told(AlterConfigsResourceResponse, [result])[0] for at, result in settled if result is not None}


def refuse(request: Request, refusal: KafkaError) -> Response:
    return Response(responses=told(AlterConfigsResourceResponse, refused_alike(request.resources, refusal)))


def merged(settled: Sequence[ConfigResult | None], answers: Iterable[ConfigResult]) -> list[ConfigResult]:
    """One result for each resource, in order. Resources without a result in `settled` have the next of `answers`."""
    rest = iter(answers)
    return [result or next(rest) for result in settled]


def refused_alike(resources: Sequence[Any], refusal: KafkaError) -> list[ConfigResult]:
    """A result with the same error for every resource in a request."""
    return [ConfigResult(one.resource_type, one.resource_name, refusal.code, refusal.message) for one in resources]


def told(answer: type[T], results: Sequence[ConfigResult]) -> list[T]:
    """The results as rows of a response. `answer` is the class of the rows, which differs between the APIs."""
    return [answer(**result._asdict()) for result in results]


def of_a_broker(resources: Iterable[T]) -> T | None:
    """The first broker among the resources. The controller refuses requests that name more than one broker."""
    return next((one for one in resources if one.resource_type == ResourceType.BROKER and one.resource_name), None)


def check_forwarded(broker: Broker, change: ReplaceConfigs | ChangeConfigs) -> None:
    """Check a change of settings of this broker, or of all brokers. Raises INVALID_REQUEST, INVALID_CONFIG."""
    current = broker.metadata.image.config(ResourceType.BROKER, change.resource_name)
    check_broker_change(broker.config, current, change)


def check_store_changes(broker: Broker, changed: Mapping[str, str | None]) -> None:
    """Raise INVALID_REQUEST if a TLS listener could not use its key store or trust store after these changes to this
    broker's settings. A value of None removes a setting."""
    if not any(is_listener_store(name) for name in changed):
        return
    config = broker.config
    wanted = {**config.dynamic_broker, **changed}
    config = config.with_dynamic(
        config.dynamic_default, {name: text for name, text in wanted.items() if text is not None}
    )
    try:
        check_stores(config, broker.world.wall_ms)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None


def _refused(broker: Broker, resource: AlterConfigsResource, first: AlterConfigsResource | None) -> ConfigResult | None:
    kind, name = resource.resource_type, resource.resource_name
    try:
        if kind == ResourceType.BROKER:
            if name:
                check_this_broker(broker, name)
            if resource is first:
                reset = dict.fromkeys(filter(is_listener_store, broker.config.dynamic_broker))
                check_store_changes(broker, {**reset, **{each.name: each.value for each in resource.configs}})
            check_forwarded(broker, _replace(resource))
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
