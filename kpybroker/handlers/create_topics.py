"""CreateTopics (19): create topics; each succeeds or fails independently. v5 returns the settings of the new topics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.config.describe import describe_topic
from kpybroker.controller.commands import CreateTopics, NewTopic, TopicResult
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.serving.fair_loop import SLICE, Turns, at_most_twice, decided
from kpybroker.serving.metadata_wait import served_everywhere
from kpybroker.serving.mutation_quota import mutations
from kpybroker.wire.rpc.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.config import BrokerConfig


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    ends_s = asyncio.get_running_loop().time() + request.timeout_ms / 1000
    turns = Turns(broker.long_work)
    quota = mutations(broker, call)
    asked: Sequence[CreatableTopic] = request.topics
    if len(asked) > SLICE:
        asked = await at_most_twice(turns, asked, lambda topic: topic.name)
    results = await decided(
        broker,
        asked,
        lambda some: CreateTopics(tuple(_new_topic(topic) for topic in some), request.validate_only, quota.take),
        request.timeout_ms,
    )
    await served_everywhere(broker, ends_s)
    settings = _Settings(broker.config)
    return Response(
        throttle_time_ms=quota.wait_ms, topics=[_result(settings, result) async for result in turns.through(results)]
    )


def refuse(request: Request, refusal: KafkaError) -> Response:
    return Response(
        topics=[
            CreatableTopicResult(name=topic.name, error_code=refusal.code, error_message=refusal.message)
            for topic in request.topics
        ]
    )


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        tuple((assigned.partition_index, tuple(assigned.broker_ids)) for assigned in topic.assignments),
        tuple((config.name, config.value) for config in topic.configs),
    )


class _Settings(dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]]):
    """The settings of new topics as response rows. Topics with equal overrides, which are common, share the rows."""

    def __init__(self, config: BrokerConfig) -> None:
        super().__init__()
        self._config = config

    def __missing__(self, overrides: frozenset[tuple[str, str]]) -> list[CreatableTopicConfigs]:
        said = self[overrides] = [
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in describe_topic(self._config, dict(overrides))
        ]
        return said


def _result(settings: _Settings, result: TopicResult) -> CreatableTopicResult:
    made = result.error_code is ErrorCode.NONE
    return CreatableTopicResult(
        name=result.name or "",
        topic_id=result.topic_id,
        error_code=result.error_code,
        error_message=result.error_message,
        num_partitions=result.num_partitions,
        replication_factor=result.replication_factor,
        configs=settings[frozenset(result.configs.items())] if made else [],
    )
