"""Helpers for share groups over a socket: members, fetches and acknowledgements, for tests of the share handlers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.config.resource_type import ResourceType
from kpybroker.wire.records.batch import Record, encode_batch
from kpybroker.wire.rpc import (
    create_topics,
    describe_share_group_offsets,
    find_coordinator,
    incremental_alter_configs,
    metadata,
    produce,
    share_acknowledge,
    share_fetch,
    share_group_heartbeat,
)

AT_ONCE = {"group.share.assignment.interval.ms": "0", "group.share.min.record.lock.duration.ms": "1000"}
ACCEPT, RELEASE, REJECT, RENEW = (1,), (2,), (3,), (4,)
Ack = tuple[int, int, Sequence[int]]
"""The first offset, the last offset and the types of an acknowledgement."""


async def topic(peer: Peer, name: str = "t", *, partitions: int = 1, batches: int = 2) -> bytes:
    """Create a topic whose partition 0 has batches of ten records, and wait for the group coordinators. Returns the
    topic's id."""
    wanted = create_topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    await peer.ask("CreateTopics", create_topics.Request(topics=[wanted]))
    for _ in range(batches):
        await append(peer, name, 10)
    await peer.ask("FindCoordinator", find_coordinator.Request(coordinator_keys=["g"]))
    [found] = (await peer.ask("Metadata", metadata.Request(topics=[metadata.MetadataRequestTopic(name=name)]))).topics
    return bytes(found.topic_id)


async def append(peer: Peer, name: str, count: int) -> None:
    """Produce one batch."""
    records = encode_batch([Record(0, 1, None, f"{number}".encode()) for number in range(count)])
    data = produce.PartitionProduceData(index=0, records=bytes(records))
    row = produce.TopicProduceData(name=name, partition_data=[data])
    told = await peer.ask("Produce", produce.Request(acks=-1, timeout_ms=9000, topic_data=[row]), version=9)
    assert told.responses[0].partition_responses[0].error_code == 0


async def configure(peer: Peer, group: str, **settings: object) -> None:
    """Change settings of a group. Names are given without the prefix `share.`, and with _ instead of dots."""
    configs = [
        incremental_alter_configs.AlterableConfig(
            name=f"share.{name.replace('_', '.')}", config_operation=0, value=str(value)
        )
        for name, value in settings.items()
    ]
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=ResourceType.GROUP, resource_name=group, configs=configs
    )
    told = await peer.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[resource]))
    assert told.responses[0].error_code == 0, told


async def beat(peer: Peer, group: str, member: str, epoch: int, *names: str, **more: Any) -> Any:
    request = share_group_heartbeat.Request(
        group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=list(names) or None, **more
    )
    return await peer.ask("ShareGroupHeartbeat", request)


async def joined(peer: Peer, group: str = "g", member: str = "m", name: str = "t") -> Any:
    """Send heartbeats until a member receives its partitions. Returns the response with them."""
    told = await beat(peer, group, member, 0, name)
    while not (told.assignment and told.assignment.topic_partitions):
        assert told.error_code == 0, told
        told = await beat(peer, group, member, told.member_epoch, name)
    return told


async def fetch(peer: Peer, topic_id: bytes, epoch: int, *acks: Ack, **said: Any) -> Any:
    """Send a ShareFetch of partition 0, or of the partitions in `partitions`. Returns the response."""
    version = said.pop("version", 2)
    indexes = said.pop("partitions", [0])
    batches = [
        share_fetch.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
        for first, last, types in acks
    ]
    rows = [
        share_fetch.FetchPartition(
            partition_index=index, acknowledgement_batches=batches if index == indexes[0] else []
        )
        for index in indexes
    ]
    topics = [share_fetch.FetchTopic(topic_id=topic_id, partitions=rows)] if rows else []
    said = {
        "group_id": "g",
        "member_id": "m",
        "max_wait_ms": 5000,
        "min_bytes": 1,
        "max_records": 500,
        "batch_size": 500,
        **said,
    }
    return await peer.ask(
        "ShareFetch", share_fetch.Request(share_session_epoch=epoch, topics=topics, **said), version=version
    )


async def acknowledge(peer: Peer, topic_id: bytes, epoch: int, *acks: Ack, **said: Any) -> Any:
    """Send a ShareAcknowledge for partition 0, or for `partition`. Returns the response."""
    version = said.pop("version", 2)
    row = share_acknowledge.AcknowledgePartition(
        partition_index=said.pop("partition", 0),
        acknowledgement_batches=[
            share_acknowledge.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
            for first, last, types in acks
        ],
    )
    topics = [share_acknowledge.AcknowledgeTopic(topic_id=topic_id, partitions=[row])]
    said = {"group_id": "g", "member_id": "m", **said}
    return await peer.ask(
        "ShareAcknowledge", share_acknowledge.Request(share_session_epoch=epoch, topics=topics, **said), version=version
    )


async def started(peer: Peer, **settings: object) -> bytes:
    """Create a topic with twenty records, and a group member that begins at the first record. Returns the topic's
    id."""
    topic_id = await topic(peer)
    await configure(peer, "g", **{"auto_offset_reset": "earliest", **settings})
    await joined(peer)
    return topic_id


def ranges(response: Any) -> list[tuple[int, int, int]]:
    """First offset, last offset and delivery count of the acquired records."""
    assert response.error_code == 0, response
    return [
        (each.first_offset, each.last_offset, each.delivery_count)
        for topic in response.responses
        for row in topic.partitions
        for each in row.acquired_records
    ]


def codes(response: Any) -> list[int]:
    """The error codes of the partitions of a ShareAcknowledge or of a broker's request."""
    topics = response.responses if hasattr(response, "responses") else response.results
    return [row.error_code for topic in topics for row in topic.partitions]


async def described_offsets(peer: Peer, group: str, version: int = 1) -> dict[tuple[str, int], Any]:
    """The rows of the DescribeShareGroupOffsets response, by topic and partition."""
    asked = describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    request = describe_share_group_offsets.Request(groups=[asked])
    [told] = (await peer.ask("DescribeShareGroupOffsets", request, version=version)).groups
    assert told.error_code == 0, told
    return {(row.topic_name, each.partition_index): each for row in told.topics for each in row.partitions}
