"""Queries the brokers for facts about groups: coordinators, members, committed offsets, lag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct, error
from typing import Any

from kpybroker.cli import cluster_facts
from kpybroker.client.client import LATEST, Client, CommandFailed, check
from kpybroker.client.coordinators import coordinator
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.groups.classic.subscription import build_assignment
from kpybroker.similar_names import nearest_name
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import (
    consumer_group_describe,
    describe_groups,
    list_groups,
    offset_commit,
    offset_fetch,
    streams_group_describe,
)

NAMES_NOT_IDS = 9
"""The last version of OffsetFetch and OffsetCommit with topic names: deleted topics have offsets, but no id."""
WITHOUT_MEMBERS = ("Empty", "Dead")
_COUNT = Struct(">i")
_LENGTH = Struct(">h")


@dataclass(slots=True, frozen=True)
class GroupMember:
    """A member of a group and its assigned partitions."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True, frozen=True)
class PartitionProgress:
    """The progress of a group in one partition. `committed`, `end` and `lag` are None if unknown."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


async def list_all(client: Client) -> list[list_groups.ListedGroup]:
    """The groups of all brokers in order of their names. Raises KafkaError."""

    async def attempt(node: int) -> list[list_groups.ListedGroup]:
        response = await client.ask("ListGroups", list_groups.Request(), node=node)
        check(response.error_code)
        groups: list[list_groups.ListedGroup] = response.groups
        return groups

    found = await cluster_facts.from_each_broker(client, attempt)
    return sorted(found, key=lambda group: group.group_id)


async def find(client: Client, group: str) -> describe_groups.DescribedGroup:
    """Describe one group; its state is Dead if it does not exist. Raises CommandFailed, KafkaError."""

    async def attempt() -> describe_groups.DescribedGroup:
        node = await coordinator(client, group)
        response = await client.ask("DescribeGroups", describe_groups.Request(groups=[group]), node=node)
        found: describe_groups.DescribedGroup = response.groups[0]
        if found.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            check(found.error_code, found.error_message)
            return found
        consumers = await _of_the_consumer_protocol(client, group, node)
        return consumers or await _of_the_streams_protocol(client, group, node) or _dead(group)

    return await client.patiently(attempt)


def _dead(group: str) -> describe_groups.DescribedGroup:
    return describe_groups.DescribedGroup(group_id=group, group_state="Dead")


async def _described(client: Client, api: str, request: Any, node: int) -> Any:
    """A group as this API describes it; None if there is no such group of its type."""
    try:
        response = await client.ask(api, request, node=node)
    except MalformedFrame:  # the broker does not serve this API
        return None
    found = response.groups[0]
    if found.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(found.error_code, found.error_message)
    return found


async def _of_the_consumer_protocol(client: Client, group: str, node: int) -> describe_groups.DescribedGroup | None:
    """Describe a consumer group (KIP-848) in the form of a classic one."""
    request = consumer_group_describe.Request(group_ids=[group])
    found = await _described(client, "ConsumerGroupDescribe", request, node)
    if found is None:
        return None
    return describe_groups.DescribedGroup(
        group_id=group,
        group_state=found.group_state,
        protocol_type="consumer",
        protocol_data=found.assignor_name,
        members=[
            describe_groups.DescribedGroupMember(
                member_id=member.member_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_assignment=build_assignment(
                    0, {topic.topic_name: topic.partitions for topic in member.assignment.topic_partitions}
                ),
            )
            for member in found.members
        ],
    )


async def _of_the_streams_protocol(client: Client, group: str, node: int) -> describe_groups.DescribedGroup | None:
    """Describe a streams group (KIP-1071) in the form of a classic one: active tasks are partitions of the topics that
    their subtopology reads."""
    request = streams_group_describe.Request(group_ids=[group])
    found = await _described(client, "StreamsGroupDescribe", request, node)
    if found is None:
        return None
    subtopologies = found.topology.subtopologies if found.topology is not None else None
    sources = {
        each.subtopology_id: [*each.source_topics, *(topic.name for topic in each.repartition_source_topics)]
        for each in subtopologies or ()
    }
    known = await client.metadata(sorted({topic for topics in sources.values() for topic in topics}))
    counts = {name: len(topic.partitions) for name, topic in known.items()}
    return describe_groups.DescribedGroup(
        group_id=group,
        group_state=found.group_state,
        protocol_type="streams",
        members=[
            describe_groups.DescribedGroupMember(
                member_id=member.member_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_assignment=build_assignment(
                    0,
                    {
                        topic: [index for index in task.partitions if index < counts.get(topic, 0)]
                        for task in member.assignment.active_tasks
                        for topic in sources.get(task.subtopology_id, ())
                    },
                ),
            )
            for member in found.members
        ],
    )


async def must_exist(client: Client, group: str) -> describe_groups.DescribedGroup:
    """Like `find`, but raises CommandFailed if the group does not exist."""
    found = await find(client, group)
    if found.group_state == "Dead":
        near = nearest_name(group, [known.group_id for known in await list_all(client)])
        meant = f"did you mean {near}?" if near is not None else "`kpybroker groups list` lists all"
        raise CommandFailed(f"there is no group {group}; {meant}")
    return found


def must_be_idle(found: describe_groups.DescribedGroup) -> None:
    """Raise CommandFailed if the group has members, which would overwrite new offsets."""
    if found.group_state in WITHOUT_MEMBERS:
        return
    who = sorted({f"{member.client_id} at {member.client_host.lstrip('/')}" for member in found.members})
    count = f"{len(found.members)} member{'' if len(found.members) == 1 else 's'}"
    shown = f" ({', '.join(who[:3])}{', ...' if len(who) > 3 else ''})" if who else ""
    raise CommandFailed(f"group {found.group_id} is {found.group_state} with {count}{shown}; stop them first")


async def committed(client: Client, group: str) -> dict[TopicPartition, int]:
    """All offsets that a group has committed. Raises KafkaError."""
    return {place: row.committed_offset for place, row in (await commits(client, group)).items()}


async def commits(
    client: Client, group: str, *, stable: bool = False
) -> dict[TopicPartition, offset_fetch.OffsetFetchResponsePartitions]:
    """All commits of a group, with their metadata. `stable`: wait for the end of transactions with such commits.
    Raises KafkaError."""

    async def attempt() -> dict[TopicPartition, offset_fetch.OffsetFetchResponsePartitions]:
        request = offset_fetch.Request(
            group_id=group,
            topics=None,
            groups=[offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=None)],
            require_stable=stable,
        )
        node = await coordinator(client, group)
        response = await client.ask("OffsetFetch", request, node=node, at_most=NAMES_NOT_IDS)
        answer = response.groups[0] if response.groups else response
        check(answer.error_code, f"the offsets of {group}")
        found: dict[TopicPartition, offset_fetch.OffsetFetchResponsePartitions] = {}
        for topic in answer.topics:
            for row in topic.partitions:
                check(row.error_code, f"the offset of {topic.name}-{row.partition_index}")
                if row.committed_offset >= 0:
                    found[topic.name, row.partition_index] = row
        return found

    return await client.patiently(attempt)


async def commit(client: Client, group: str, offsets: dict[TopicPartition, int]) -> None:
    """Set offsets of a group without members. Raises CommandFailed, KafkaError."""

    async def attempt() -> None:
        topics = []
        for name in sorted({topic for topic, _ in offsets}):
            partitions = [
                offset_commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
                for (topic, index), offset in sorted(offsets.items())
                if topic == name
            ]
            topics.append(offset_commit.OffsetCommitRequestTopic(name=name, partitions=partitions))
        request = offset_commit.Request(group_id=group, topics=topics)
        response = await client.ask(
            "OffsetCommit", request, node=await coordinator(client, group), at_most=NAMES_NOT_IDS
        )
        for topic in response.topics:
            for row in topic.partitions:
                if row.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS):
                    raise CommandFailed(f"members have joined {group}; stop them and reset again")
                check(row.error_code, f"{topic.name}-{row.partition_index}")

    await client.patiently(attempt)


def members_of(found: describe_groups.DescribedGroup) -> list[GroupMember]:
    """The members, with their partitions if they are known from the group's protocol type."""
    tells_partitions = found.protocol_type in ("consumer", "streams")
    return [
        GroupMember(
            member.member_id,
            member.client_id,
            member.client_host.lstrip("/"),
            tuple(parse_assignment(bytes(member.member_assignment))) if tells_partitions else (),
        )
        for member in found.members
    ]


async def standings(client: Client, group: str, members: Sequence[GroupMember]) -> list[PartitionProgress]:
    """The progress in every partition for which the group has a committed offset or an owner. Raises KafkaError."""
    offsets = await committed(client, group)
    holders = {place: member for member in members for place in member.partitions}
    known = await client.metadata(sorted({topic for topic, _ in (*offsets, *holders)}))
    alive = {
        (name, row.partition_index)
        for name, topic in known.items()
        for row in topic.partitions
        if not topic.error_code and not row.error_code
    }
    places = sorted({*offsets, *holders})
    ends = await client.list_offsets({place: LATEST for place in places if place in alive})
    return [PartitionProgress(*place, offsets.get(place), ends.get(place), holders.get(place)) for place in places]


def parse_assignment(data: bytes) -> list[TopicPartition]:
    """The partitions in a ConsumerProtocolAssignment; [] for other bytes.

    Its first fields are the same in every version: an int16 version, an array of (string, array of int32), user data.
    """
    found: list[TopicPartition] = []
    at = _LENGTH.size
    try:
        (topics,) = _COUNT.unpack_from(data, at)
        at += _COUNT.size
        for _ in range(topics):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            name = data[at : at + max(0, length)].decode()
            at += max(0, length)
            (count,) = _COUNT.unpack_from(data, at)
            at += _COUNT.size
            if not 0 <= count <= (len(data) - at) // _COUNT.size:
                return []
            found += [(name, _COUNT.unpack_from(data, at + _COUNT.size * each)[0]) for each in range(count)]
            at += _COUNT.size * count
    except (error, UnicodeDecodeError):
        return []
    return found


async def delete(client: Client, group: str) -> None:
    """Delete a group that has no members. Raises KafkaError."""
    from kpybroker.wire.rpc import delete_groups

    async def attempt() -> None:
        node = await coordinator(client, group)
        response = await client.ask("DeleteGroups", delete_groups.Request(groups_names=[group]), node=node)
        for row in response.results:
            if row.error_code == ErrorCode.NON_EMPTY_GROUP:
                raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group} has members; stop them first")
            check(row.error_code, f"group {group}")

    await client.patiently(attempt, resend=False)
