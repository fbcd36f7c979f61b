"""The requests of `Kafka`: each function uses a connected client. Raises KafkaError, CommandFailed, OSError."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kpybroker.cli import cluster_facts, group_facts, trimming
from kpybroker.cli.consuming import TopicReader, find_ends
from kpybroker.cli.json_lines import Outgoing
from kpybroker.cli.producing import RecordSender, SendOptions
from kpybroker.client.client import EARLIEST, LATEST, Client, check, parse_bootstrap
from kpybroker.client.dialer import client_dialer
from kpybroker.config.property_files import read_properties
from kpybroker.errors import ErrorCode
from kpybroker.metadata.hashing import partition_of
from kpybroker.topics import OFFSETS_TOPIC
from kpybroker.wire.recording import KIT_CLIENT_ID
from kpybroker.wire.records.batch import Headers
from kpybroker.wire.rpc import (
    alter_partition_reassignments,
    consumer_group_heartbeat,
    create_topics,
    delete_topics,
    elect_leaders,
    find_coordinator,
    init_producer_id,
    leave_group,
    metadata,
)
from kpybroker.world.real import real_world

RECORDS_MAX = 100_000
"""The maximum number of records that one call returns, because they are held in memory."""

LOOK_EVERY_S = 0.02
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
PREFERRED = 0
"""The election type of ElectLeaders that makes the first replica the leader."""


class ReceivedRecord(NamedTuple):
    """A record of a topic. `timestamp_ms`: milliseconds since the epoch."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def client_of(bootstrap: str, properties: Path | None, timeout_s: float) -> Client:
    """A client that is not connected yet. Raises ConfigError, OSError."""
    settings = {} if properties is None else read_properties(properties)
    addresses, timeout_ms = parse_bootstrap(bootstrap), int(timeout_s * 1000)
    return Client(client_dialer(real_world(), settings), addresses, timeout_ms, KIT_CLIENT_ID)


async def create_topic(client: Client, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
    """Create a topic with the broker's default number of replicas, and wait until its partitions have leaders."""
    topic = create_topics.CreatableTopic(
        name=name,
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1,
        configs=[create_topics.CreatableTopicConfig(name=setting, value=value) for setting, value in settings.items()],
    )

    async def attempt() -> None:
        request = create_topics.Request(topics=[topic], timeout_ms=client.timeout_ms)
        for row in (await client.ask("CreateTopics", request)).topics:
            check(row.error_code, row.error_message or row.name)

    await client.patiently(attempt, resend=False)
    await client.topic(name)


async def send(client: Client, topic: str, records: Sequence[Outgoing]) -> None:
    """Send records with acks=all as an idempotent producer. Raises ValueError for a partition that does not exist."""
    sender = RecordSender(client, topic, SendOptions())
    await sender.start()
    for partition in {record.partition for record in records}:
        if partition is not None:
            await _partition(client, topic, partition)
    await sender.add(records)
    await sender.flush()


async def records(client: Client, topic: str, at_most: int, *, committed_only: bool) -> list[ReceivedRecord]:
    """The records between the start and the end of each partition. Raises ValueError for more than `at_most`."""
    partitions = sorted(row.partition_index for row in (await client.topic(topic)).partitions)
    starts = await client.list_offsets({(topic, partition): EARLIEST for partition in partitions})
    positions = {partition: starts[topic, partition] for partition in partitions}
    ends = await find_ends(client, topic, partitions, committed=committed_only)
    found: list[ReceivedRecord] = []
    async for page in TopicReader(client, topic, positions, ends, committed=committed_only).pages():
        found += [
            ReceivedRecord(partition, record.offset, record.timestamp, record.key, record.value, record.headers)
            for partition, record in page
        ]
        if len(found) > at_most:
            raise ValueError(f"{topic} holds more than {at_most} records; read it with a client library")
    return sorted(found, key=lambda record: (record.partition, record.offset))


async def records_if_any(client: Client, topic: str, *, committed_only: bool) -> list[ReceivedRecord]:
    """Like `records`; [] if the topic does not exist."""
    if (await client.metadata([topic]))[topic].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return []
    return await records(client, topic, RECORDS_MAX, committed_only=committed_only)


async def committed(client: Client, group: str, topic: str) -> dict[int, int]:
    """The group's committed offsets in the topic, by partition."""
    found = await group_facts.committed(client, group)
    return {partition: offset for (name, partition), offset in sorted(found.items()) if name == topic}


async def standing(client: Client, group: str, topic: str) -> tuple[int, dict[int, int]]:
    """The lag, which is the number of offsets between the committed ones and the ends of all partitions (partitions
    without a committed offset count in full), and the committed offsets."""
    partitions = [row.partition_index for row in (await client.topic(topic)).partitions]
    offsets = await committed(client, group, topic)
    starts = await client.list_offsets({(topic, partition): EARLIEST for partition in partitions})
    ends = await client.list_offsets({(topic, partition): LATEST for partition in partitions}, committed=True)
    behind = (
        max(0, ends[topic, partition] - offsets.get(partition, starts[topic, partition])) for partition in partitions
    )
    return sum(behind), offsets


async def move_leader(client: Client, topic: str, partition: int, to: int) -> None:
    """Make a replica the preferred one, have it elected as the leader, and wait until every broker knows that.

    Raises ValueError if broker `to` has no replica.
    """
    row = await _partition(client, topic, partition)
    if to not in row.replica_nodes:
        has = ", ".join(map(str, sorted(row.replica_nodes)))
        raise ValueError(f"broker {to} has no replica of {topic}-{partition}: its replicas are on brokers {has}")
    order = [to, *(node for node in row.replica_nodes if node != to)]
    moved = alter_partition_reassignments.ReassignablePartition(partition_index=partition, replicas=order)
    moving = alter_partition_reassignments.Request(
        timeout_ms=client.timeout_ms,
        topics=[alter_partition_reassignments.ReassignableTopic(name=topic, partitions=[moved])],
    )
    response = await client.ask("AlterPartitionReassignments", moving)
    check(response.error_code, response.error_message)
    [result] = response.responses[0].partitions
    check(result.error_code, result.error_message)

    async def elect() -> None:
        election = elect_leaders.Request(
            election_type=PREFERRED,
            topic_partitions=[elect_leaders.TopicPartitions(topic=topic, partitions=[partition])],
            timeout_ms=client.timeout_ms,
        )
        response = await client.ask("ElectLeaders", election)
        check(response.error_code)
        for result in (each for row in response.replica_election_results for each in row.partition_result):
            if result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                check(result.error_code, result.error_message)

    async def look() -> None:
        request = metadata.Request(topics=[metadata.MetadataRequestTopic(name=topic)])
        for node in client.brokers:
            rows = (await client.ask("Metadata", request, node=node)).topics[0].partitions
            leader = next((row.leader_id for row in rows if row.partition_index == partition), -1)
            if leader != to:
                check(ErrorCode.LEADER_NOT_AVAILABLE, f"for broker {node}, broker {leader} leads {topic}-{partition}")

    await client.patiently(elect)
    await client.patiently(look)


async def move_coordinator(client: Client, group: str, to: int) -> None:
    """Move the leadership of the group's partition of `__consumer_offsets`, and wait until the new coordinator serves.
    Raises ValueError as `move_leader` does."""
    topic = await client.topic(OFFSETS_TOPIC)
    await move_leader(client, OFFSETS_TOPIC, partition_of(group, len(topic.partitions)), to)
    await group_facts.committed(client, group)


async def _partition(client: Client, topic: str, partition: int) -> metadata.MetadataResponsePartition:
    """The metadata of a partition. Raises ValueError if the topic has no such partition."""
    rows = (await client.topic(topic)).partitions
    for row in rows:
        if row.partition_index == partition:
            return row
    raise ValueError(f"{topic} has no partition {partition}: it has {len(rows)}")


async def reset(client: Client) -> None:
    """Delete all groups, then all topics that are not internal."""
    for group in await group_facts.list_all(client):
        await group_facts.delete(client, group.group_id)
    names = [name for name, topic in (await client.metadata()).items() if not topic.is_internal]
    if names:
        request = delete_topics.Request(
            topics=[delete_topics.DeleteTopicState(name=name) for name in names],
            topic_names=names,
            timeout_ms=client.timeout_ms,
        )
        for row in (await client.ask("DeleteTopics", request)).responses:
            if row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                check(row.error_code, row.error_message or row.name)


async def controller(client: Client) -> int:
    """The id of the active controller."""
    return (await cluster_facts.quorum(client)).leader


async def in_sync(client: Client, topic: str, partition: int) -> list[int]:
    """The brokers whose replicas are in sync, in order."""
    return sorted((await _partition(client, topic, partition)).isr_nodes)


async def delete_records(client: Client, topic: str, before: Mapping[int, int]) -> None:
    """Delete the records of partitions before these offsets. Raises ValueError for a partition that does not exist."""
    for partition in before:
        await _partition(client, topic, partition)
    await trimming.delete(client, {(topic, partition): offset for partition, offset in before.items()})


async def remove_members(client: Client, group: str) -> list[str]:
    """Let all members leave a classic or a consumer group. Returns their ids."""
    found = await group_facts.must_exist(client, group)
    node = await _coordinator(client, group, of_group=True)
    gone = []
    for member in found.members:
        left = leave_group.MemberIdentity(
            member_id=member.member_id, group_instance_id=member.group_instance_id, reason="a test removes the member"
        )
        response = await client.ask("LeaveGroup", leave_group.Request(group_id=group, members=[left]), node=node)
        code = response.error_code or next((each.error_code for each in response.members), 0)
        if code == ErrorCode.UNKNOWN_MEMBER_ID:  # a member of the consumer protocol
            request = consumer_group_heartbeat.Request(group_id=group, member_id=member.member_id, member_epoch=-1)
            code = (await client.ask("ConsumerGroupHeartbeat", request, node=node)).error_code
        if code != ErrorCode.UNKNOWN_MEMBER_ID:  # otherwise it has left in the meantime
            check(code, f"member {member.member_id} of {group}")
            gone.append(member.member_id)
    return gone


async def fence_producer(client: Client, transactional_id: str) -> None:
    """Begin another incarnation of a transactional producer, which fences the current one and aborts its
    transaction."""

    async def attempt() -> None:
        node = await _coordinator(client, transactional_id, of_group=False)
        request = init_producer_id.Request(
            transactional_id=transactional_id, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        while (code := (await client.ask("InitProducerId", request, node=node)).error_code) == CONCURRENT:
            await asyncio.sleep(LOOK_EVERY_S)  # the transaction that was open is being aborted
        check(code, transactional_id)

    await client.patiently(attempt)


async def _coordinator(client: Client, key: str, *, of_group: bool) -> int:
    async def attempt() -> int:
        request = find_coordinator.Request(key_type=0 if of_group else 1, coordinator_keys=[key], key=key)
        response = await client.ask("FindCoordinator", request)
        row = response.coordinators[0] if response.coordinators else response
        check(row.error_code, row.error_message)
        await client.metadata()  # so that the client knows the address of each broker
        return int(row.node_id)

    return await client.patiently(attempt)
