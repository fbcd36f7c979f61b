"""DescribeShareGroupOffsets (90): list the start offsets of share groups (KIP-932), and in v1 their lags (KIP-1226).

The start offset and the lag are -1 if the share partition was never initialized, or no member has fetched from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.groups.ground.commands import ListSharePartitions
from kpybroker.serving.fair_loop import Turns
from kpybroker.serving.shares.lags import ends_of
from kpybroker.serving.shares.places import check_served
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.persister import Summary
from kpybroker.shares.state import UNINITIALIZED
from kpybroker.wire.codec.primitives import ZERO_UUID
from kpybroker.wire.rpc.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

Wanted = dict[str, list[int]]
"""Topic -> partitions."""


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return a row for each group, in which each share partition has a row with its own error code."""
    check_served(broker)
    turns = Turns(broker.long_work)
    return Response(groups=[await _group(broker, asked) async for asked in turns.through(request.groups)])


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every group."""
    return Response(groups=[_refused(asked.group_id, refusal) for asked in request.groups])


def _refused(group_id: str, refusal: KafkaError) -> DescribeShareGroupOffsetsResponseGroup:
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group_id, error_code=refusal.code, error_message=refusal.message
    )


async def _group(
    broker: Broker, asked: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    image, group_id = broker.metadata.image, asked.group_id
    try:
        runner = broker.coordinators.groups.runner(group_id)
        initialized = await runner.ask(ListSharePartitions(group_id), broker.config.request_timeout_ms)
        if asked.topics is not None:
            wanted: Wanted = {topic.topic_name: list(dict.fromkeys(topic.partitions)) for topic in asked.topics}
        else:
            wanted = {}
            for topic_id, index in initialized:
                topic = image.topic_by_id(topic_id)
                if topic is not None:
                    wanted.setdefault(topic.name, []).append(index)
        rows = await _rows(broker, group_id, wanted, set(initialized))
    except KafkaError as refusal:
        return _refused(group_id, refusal)
    return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, topics=rows)


async def _rows(
    broker: Broker, group_id: str, wanted: Wanted, initialized: set[tuple[bytes, int]]
) -> list[DescribeShareGroupOffsetsResponseTopic]:
    image = broker.metadata.image
    ids = {name: topic.id for name in wanted if (topic := image.topic(name)) is not None}
    keys = [
        ShareKey(group_id, ids[name], index)
        for name, indexes in wanted.items()
        for index in indexes
        if name in ids and (ids[name], index) in initialized
    ]
    summaries = dict(zip(keys, await broker.coordinators.persister.summaries(keys), strict=True))
    begun = [key for key, found in summaries.items() if isinstance(found, Summary) and found.start != UNINITIALIZED]
    ends = await ends_of(broker, begun)
    return [
        DescribeShareGroupOffsetsResponseTopic(
            topic_name=name,
            topic_id=ids.get(name, ZERO_UUID),
            partitions=[
                _row(index, summaries.get(key, Summary()), ends.get(key))
                for index in indexes
                for key in (ShareKey(group_id, ids.get(name, ZERO_UUID), index),)
            ],
        )
        for name, indexes in wanted.items()
    ]


def _row(index: int, found: Summary | KafkaError, end: int | None) -> DescribeShareGroupOffsetsResponsePartition:
    if isinstance(found, KafkaError):
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, start_offset=-1, error_code=found.code, error_message=found.message
        )
    lag = -1 if end is None else max(end - found.start - max(found.complete_count, 0), 0)
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index, start_offset=found.start, leader_epoch=found.leader_epoch, lag=lag
    )
