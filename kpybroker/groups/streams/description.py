"""Builds the rows of StreamsGroupDescribe, and the endpoints at which the partitions of tasks can be queried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kpybroker.groups.ground.commands import InternalTopic
from kpybroker.groups.streams.configuration import ConfiguredSubtopology
from kpybroker.groups.streams.group import StreamsGroup, StreamsMember
from kpybroker.groups.streams.tasks import HeldTasks, Task, Tasks, by_subtopology, task_ids
from kpybroker.groups.streams.topology import Topology
from kpybroker.metadata.image import Image
from kpybroker.wire.rpc import streams_group_describe as described_rpc
from kpybroker.wire.rpc import streams_group_heartbeat as heartbeat_rpc
from kpybroker.wire.rpc.list_groups import ListedGroup
from kpybroker.wire.stored import streams_group as stored


def listed(group: StreamsGroup) -> ListedGroup:
    return ListedGroup(group_id=group.group_id, protocol_type="streams", group_state=group.state, group_type="streams")


def described(group: StreamsGroup) -> described_rpc.DescribedGroup:
    """The group's row in a StreamsGroupDescribe response."""
    return described_rpc.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=_topology(group),
        members=[_member(group, member) for member in group.members.values()],
    )


# -- topology ---------------------------------------------------------------------------------------------------------


def _topology(group: StreamsGroup) -> described_rpc.Topology | None:
    """The topology. It includes partition counts once the topology is configured."""
    if group.topology is None:
        return None
    found = group.configured
    if found is not None and found.is_ready and found.subtopologies is not None:
        subtopologies = [_configured(name, each) for name, each in found.subtopologies.items()]
    else:
        subtopologies = _told(group.topology)
    return described_rpc.Topology(epoch=group.topology.epoch, subtopologies=subtopologies)


def _configured(name: str, each: ConfiguredSubtopology) -> described_rpc.Subtopology:
    return described_rpc.Subtopology(
        subtopology_id=name,
        source_topics=sorted(set(each.source_topics)),
        repartition_sink_topics=sorted(set(each.repartition_sinks)),
        state_changelog_topics=_internal(each.changelogs),
        repartition_source_topics=_internal(each.repartition_sources),
    )


def _internal(topics: Mapping[str, InternalTopic]) -> list[described_rpc.TopicInfo]:
    return [
        _topic(name, topic.partitions, topic.replication_factor, topic.configs.items())
        for name, topic in sorted(topics.items())
    ]


def _told(topology: Topology) -> list[described_rpc.Subtopology]:
    """The subtopologies as the client described them."""
    return [
        described_rpc.Subtopology(
            subtopology_id=name,
            source_topics=sorted(each.source_topics),
            repartition_sink_topics=sorted(each.repartition_sink_topics),
            state_changelog_topics=_stored(each.state_changelog_topics),
            repartition_source_topics=_stored(each.repartition_source_topics),
        )
        for name, each in sorted(topology.subtopologies.items())
    ]


def _stored(topics: Iterable[stored.TopicInfo]) -> list[described_rpc.TopicInfo]:
    return [
        _topic(
            topic.name,
            topic.partitions,
            topic.replication_factor,
            [(each.key, each.value) for each in topic.topic_configs],
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]


def _topic(
    name: str, partitions: int, replication_factor: int, configs: Iterable[tuple[str, str]]
) -> described_rpc.TopicInfo:
    return described_rpc.TopicInfo(
        name=name,
        partitions=partitions,
        replication_factor=replication_factor,
        topic_configs=[described_rpc.KeyValue(key=key, value=value) for key, value in configs],
    )


# -- members ----------------------------------------------------------------------------------------------------------


def _member(group: StreamsGroup, member: StreamsMember) -> described_rpc.Member:
    metadata, endpoint = member.metadata, member.metadata.endpoint
    return described_rpc.Member(
        member_id=member.member_id,
        member_epoch=member.current.epoch,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topology_epoch=metadata.topology_epoch,
        process_id=metadata.process_id,
        user_endpoint=None if endpoint is None else described_rpc.Endpoint(host=endpoint[0], port=endpoint[1]),
        client_tags=[described_rpc.KeyValue(key=key, value=value) for key, value in metadata.tags.items()],
        assignment=_assignment(member.current.assigned),
        target_assignment=_assignment(group.targets.get(member.member_id, Tasks())),
    )


def _assignment(tasks: Tasks | HeldTasks) -> described_rpc.Assignment:
    return described_rpc.Assignment(
        active_tasks=task_ids(described_rpc.TaskIds, tasks.active),
        standby_tasks=task_ids(described_rpc.TaskIds, tasks.standby),
        warmup_tasks=task_ids(described_rpc.TaskIds, tasks.warmup),
    )


# -- endpoints --------------------------------------------------------------------------------------------------------


def partitions_by_endpoint(group: StreamsGroup, last: StreamsMember, image: Image) -> list[Any]:
    """For each endpoint, the source topic partitions of the tasks that run there. `last` is the member that comes last
    in the list, as in Kafka."""
    subtopologies = {} if group.configured is None else group.configured.subtopologies or {}
    members = [member for member in group.members.values() if member is not last]
    return [
        heartbeat_rpc.EndpointToPartitions(
            user_endpoint=heartbeat_rpc.Endpoint(host=member.metadata.endpoint[0], port=member.metadata.endpoint[1]),
            active_partitions=_partitions(member.current.assigned.active, subtopologies, image),
            standby_partitions=_partitions(member.current.assigned.standby, subtopologies, image),
        )
        for member in (*members, last)
        if member.metadata.endpoint is not None
    ]


def _partitions(tasks: Iterable[Task], subtopologies: Mapping[str, ConfiguredSubtopology], image: Image) -> list[Any]:
    found = []
    for name, partitions in by_subtopology(tasks).items():
        each = subtopologies.get(name)
        for topic in () if each is None else dict.fromkeys((*each.source_topics, *each.repartition_sources)):
            known = image.topic(topic)
            if known is not None:
                there = [partition for partition in partitions if partition < len(known.partitions)]
                found.append(heartbeat_rpc.TopicPartition(topic=topic, partitions=there))
    return found
