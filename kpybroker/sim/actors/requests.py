"""Requests that several actors send: a batch, offsets by time, what metadata says of a topic."""

from __future__ import annotations

from typing import Any

from kpybroker.sim.clients.client import Client, Leader, Refused
from kpybroker.sim.world.history import Place
from kpybroker.wire.rpc import list_offsets, produce

PRODUCE_LIMIT_MS = 5000
EARLIEST = -2


async def produced(client: Client, place: Place, batch: bytes) -> tuple[int, Leader, Any]:
    """Append a batch with acks=all. Returns its base offset, who said so, and the whole answer. Raises Unanswered,
    Refused."""
    name, index = place
    leader = await client.leader(name, index)
    data: Any = produce.PartitionProduceData(index=index, records=batch)
    topic = produce.TopicProduceData(name=name, topic_id=leader.topic_id, partition_data=[data])
    request = produce.Request(acks=-1, timeout_ms=PRODUCE_LIMIT_MS, topic_data=[topic])
    told = await client.ask(leader.node_id, "Produce", request)
    row = told.responses[0].partition_responses[0]
    if row.error_code:
        raise Refused(row.error_code)
    return int(row.base_offset), leader, told


async def offset_by_time(client: Client, place: Place, leader: Leader, timestamp: int) -> tuple[int, int]:
    """Offset and timestamp of a ListOffsets by time, or by one of the special ones. Raises Unanswered, Refused."""
    name, index = place
    row = list_offsets.ListOffsetsPartition(
        partition_index=index, timestamp=timestamp, current_leader_epoch=leader.epoch
    )
    topic = list_offsets.ListOffsetsTopic(name=name, partitions=[row])
    told = await client.ask(leader.node_id, "ListOffsets", list_offsets.Request(replica_id=-1, topics=[topic]))
    answer = told.topics[0].partitions[0]
    if answer.error_code:
        raise Refused(answer.error_code)
    return int(answer.offset), int(answer.timestamp)


async def partitions_of(client: Client, name: str) -> dict[int, Any]:
    """The rows of a topic's partitions, by index, as some node has them now. Raises Unanswered."""
    client.forget_topic(name)
    return {row.partition_index: row for row in (await client.topic(name)).partitions}
