"""Describes consumer groups for ConsumerGroupDescribe and ListGroups."""

from __future__ import annotations

from collections.abc import Iterable

from kpybroker.groups.consumer.group import NOTHING, ConsumerGroup, ConsumerMember
from kpybroker.groups.consumer.records import by_topic
from kpybroker.metadata.image import Image
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.rpc.consumer_group_describe import Assignment, DescribedGroup, Member, TopicPartitions
from kpybroker.wire.rpc.list_groups import ListedGroup

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def listed(group: ConsumerGroup) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id, protocol_type="consumer", group_state=group.state, group_type="consumer"
    )


def described(group: ConsumerGroup, assignor: str, image: Image) -> DescribedGroup:
    """The group's row in a ConsumerGroupDescribe response. Deleted topics are omitted."""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor,
        members=[_member(group, member, image) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, image: Image) -> Member:
    has = (*member.current.assigned, *member.current.revoking)
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.current.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.names),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(has, image),
        target_assignment=_assignment(group.targets.get(member.member_id, NOTHING), image),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(places: Iterable[TopicIdPartition], image: Image) -> Assignment:
    topics = []
    for topic_id, partitions in by_topic(places).items():
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            topics.append(TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=partitions))
    return Assignment(topic_partitions=topics)
