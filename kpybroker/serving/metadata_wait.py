"""Waits until this broker, or all live brokers, have applied the committed metadata, so that a client can send its next
request to any of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc import describe_quorum as rpc

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

PATIENCE_MS = 1000
"""How long to wait for a broker that has not applied the metadata. It may have failed a moment ago."""
LOOK_AGAIN_S = 0.005


async def caught_up(broker: Broker) -> None:
    """Wait until this broker has applied the metadata that was committed when this was called.

    Raises COORDINATOR_LOAD_IN_PROGRESS, after which clients ask again, if it does not learn or reach that in time. A
    broker whose principal may not describe the quorum waits for PATIENCE_MS.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + PATIENCE_MS / 1000
    rows = [rpc.PartitionData(partition_index=0)]
    request = rpc.Request(topics=[rpc.TopicData(topic_name=METADATA_TOPIC, partitions=rows)])
    try:
        told = await broker.membership.channel.ask("DescribeQuorum", request, PATIENCE_MS)
    except KafkaError as failed:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, failed.message) from failed
    if told.error_code or told.topics[0].partitions[0].error_code:
        await asyncio.sleep(PATIENCE_MS / 1000)
        return
    last = told.topics[0].partitions[0].high_watermark - 1
    while broker.metadata.image.offset < last:
        if loop.time() >= ends_s:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        await asyncio.sleep(LOOK_AGAIN_S)


async def served_everywhere(broker: Broker, ends_s: float) -> None:
    """Wait until this broker has opened its logs and every live broker has applied the metadata committed so far.

    Called on the active controller. The wait ends at `ends_s` of the event loop's clock at the latest.
    """
    loop = asyncio.get_running_loop()
    await broker.replication.replicas.until_hosted(ends_s)
    if len(broker.metadata.image.brokers) < 2:
        return

    def others() -> list[int]:
        return [node_id for node_id in broker.metadata.image.live_brokers() if node_id != broker.node_id]

    patience_ms = min(max(int((ends_s - loop.time()) * 1000), 0), PATIENCE_MS)
    await broker.quorum.until_applied(others, broker.quorum.committed, patience_ms)
