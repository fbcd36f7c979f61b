"""Requests that several actors send: Produce, ListOffsets by time, Metadata of a topic."""

from __future__ import annotations

from typing import Any

from kpybroker.sim.clients.client import KnownLeader, Refused, SimClient
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import list_offsets, produce

PRODUCE_LIMIT_MS = 5000
EARLIEST = -2


async def produced(client: SimClient, place: TopicPartition, batch: bytes) -> tuple[int, KnownLeader, Any]:
    """Append a batch with acks=all. Returns its base offset, the leader that responded, and the response. Raises
    Unanswered, Refused."""
    name, index = place
    leader = await client.leader(name, index)
    data: Any = produce.PartitionProduceData(index=index, records=batch)
    topic = produce.TopicProduceData(name=name, topic_id=leader.topic_id, partition_data=[data])
    request = produce.Request(acks=-1, timeout_ms=PRODUCE_LIMIT_MS, topic_data=[topic])
    response = await client.ask(leader.node_id, "Produce", request)
    row = response.responses[0].partition_responses[0]
    if row.error_code:
        raise Refused(row.error_code)
    return int(row.base_offset), leader, response


async def offset_by_time(
    client: SimClient, place: TopicPartition, leader: KnownLeader, timestamp: int
) -> tuple[int, int]:
    """(offset, timestamp) from ListOffsets for a time, or one of the special timestamps. Raises Unanswered, Refused."""
    name, index = place
    row = list_offsets.ListOffsetsPartition(
        partition_index=index, timestamp=timestamp, current_leader_epoch=leader.epoch
    )
    topic = list_offsets.ListOffsetsTopic(name=name, partitions=[row])
    response = await client.ask(leader.node_id, "ListOffsets", list_offsets.Request(replica_id=-1, topics=[topic]))
    answer = response.topics[0].partitions[0]
    if answer.error_code:
        raise Refused(answer.error_code)
    return int(answer.offset), int(answer.timestamp)


async def partitions_of(client: SimClient, name: str) -> dict[int, Any]:
    """A topic's partitions by index, from fresh metadata of a random node. Raises Unanswered."""
    client.forget_topic(name)
    return {row.partition_index: row for row in (await client.topic(name)).partitions}
