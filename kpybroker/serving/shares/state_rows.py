"""Requests of brokers to the share coordinator. They have partitions by topic, each with a row in the response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kpybroker.errors import KafkaError
from kpybroker.shares.keys import ShareKey

AT_ONCE = 200
"""The maximum number of partitions of one request that are processed concurrently."""
NOTHING: Mapping[str, Any] = {}

Do = Callable[[ShareKey, Any], Awaitable[Mapping[str, Any] | None]]
"""Executes one row, and returns the fields of its result except the partition. Raises KafkaError."""


async def answer_rows(request: Any, do: Do, result: Any, row: Any) -> list[Any]:
    """The results for all topics. `result` and `row` are the classes of a topic and of a partition in the response.

    As in Kafka, the response to a request without a group has no rows.
    """

    async def answer(topic_id: bytes, asked: Any) -> Any:
        try:
            told = await do(ShareKey(request.group_id, topic_id, asked.partition), asked)
        except KafkaError as refusal:
            return row(partition=asked.partition, error_code=refusal.code, error_message=refusal.message)
        return row(partition=asked.partition, **(told or NOTHING))

    results: list[Any] = []
    if not request.group_id:
        return results
    for topic in request.topics:
        topic_id, rows = bytes(topic.topic_id), []
        for begin in range(0, len(topic.partitions), AT_ONCE):
            some = topic.partitions[begin : begin + AT_ONCE]
            rows += await asyncio.gather(*(answer(topic_id, asked) for asked in some))
        results.append(result(topic_id=topic_id, partitions=rows))
    return results


def refused_rows(request: Any, refusal: KafkaError, result: Any, row: Any) -> list[Any]:
    """The results that refuse every partition."""
    return [
        result(
            topic_id=topic.topic_id,
            partitions=[
                row(partition=asked.partition, error_code=refusal.code, error_message=refusal.message)
                for asked in topic.partitions
            ],
        )
        for topic in request.topics
    ]
