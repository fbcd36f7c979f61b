"""DeleteTopics (20): delete topics by name, or from v6 on by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import ZERO_UUID, DeleteTopics
from kpybroker.errors import KafkaError
from kpybroker.serving.fair_loop import SLICE, Turns, at_most_twice, decided
from kpybroker.serving.mutation_quota import mutations
from kpybroker.wire.rpc.delete_topics import DeletableTopicResult, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    turns = Turns(broker.long_work)
    quota = mutations(broker, call)
    asked: Sequence[tuple[str | None, bytes]] = _asked(request)
    if len(asked) > SLICE:
        asked = await at_most_twice(turns, asked, lambda each: each)
    results = await decided(broker, asked, lambda some: DeleteTopics(some, quota.take), request.timeout_ms)
    return Response(
        throttle_time_ms=quota.wait_ms,
        responses=[
            DeletableTopicResult(
                name=result.name,
                topic_id=result.topic_id,
                error_code=result.error_code,
                error_message=result.error_message,
            )
            async for result in turns.through(results)
        ],
    )


def refuse(request: Request, refusal: KafkaError) -> Response:
    return Response(
        responses=[
            DeletableTopicResult(name=name, topic_id=topic_id, error_code=refusal.code, error_message=refusal.message)
            for name, topic_id in _asked(request)
        ]
    )


def _asked(request: Request) -> tuple[tuple[str | None, bytes], ...]:
    by_name: list[tuple[str | None, bytes]] = [(name, ZERO_UUID) for name in request.topic_names]
    return (*by_name, *((topic.name, topic.topic_id) for topic in request.topics))
