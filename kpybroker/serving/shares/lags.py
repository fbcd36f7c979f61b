"""Looks up the high watermarks of partitions on any broker, from which the lag of share groups is computed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kpybroker.client.broker_connections import LOST
from kpybroker.errors import KafkaError
from kpybroker.shares.keys import ShareKey
from kpybroker.wire.rpc import list_offsets

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

LATEST = -1


async def ends_of(broker: Broker, keys: Sequence[ShareKey]) -> dict[ShareKey, int]:
    """The high watermark of each partition. Partitions whose leader does not respond are missing."""
    image = broker.metadata.image
    found: dict[ShareKey, int] = {}
    elsewhere: defaultdict[int, dict[tuple[str, int], ShareKey]] = defaultdict(dict)
    for key in keys:
        topic = image.topic_by_id(key.topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            continue
        leader = topic.partitions[key.partition].leader
        if leader == broker.node_id:
            try:
                found[key] = broker.replication.hosting.leads(topic.name, key.partition).log.high_watermark
            except KafkaError:
                continue
        elif leader >= 0:
            elsewhere[leader][topic.name, key.partition] = key
    told = await asyncio.gather(*(_ask(broker, node_id, list(wanted)) for node_id, wanted in elsewhere.items()))
    for wanted, ends in zip(elsewhere.values(), told, strict=True):
        found.update({wanted[place]: end for place, end in ends.items() if place in wanted})
    return found


async def _ask(broker: Broker, node_id: int, places: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    topics: defaultdict[str, list[list_offsets.ListOffsetsPartition]] = defaultdict(list)
    for topic, index in places:
        topics[topic].append(
            list_offsets.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=LATEST)
        )
    request = list_offsets.Request(
        replica_id=-1,
        topics=[list_offsets.ListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()],
    )
    try:
        told = await broker.coordinators.connections.ask(
            node_id, "ListOffsets", request, broker.config.share_coordinator_write_timeout_ms
        )
    except LOST:
        return {}
    return {
        (topic.name, row.partition_index): row.offset
        for topic in told.topics
        for row in topic.partitions
        if not row.error_code
    }
