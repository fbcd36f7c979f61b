"""Builds the entries of share groups in ShareGroupDescribe and ListGroups responses."""

from __future__ import annotations

from kpybroker.groups.share.group import ShareGroup, ShareMember
from kpybroker.groups.share.records import by_topic
from kpybroker.metadata.image import Image
from kpybroker.wire.rpc.list_groups import ListedGroup
from kpybroker.wire.rpc.share_group_describe import Assignment, DescribedGroup, Member, TopicPartitions

ASSIGNOR = "simple"


def listed(group: ShareGroup) -> ListedGroup:
    return ListedGroup(group_id=group.group_id, protocol_type="share", group_state=group.state, group_type="share")


def described(group: ShareGroup, image: Image) -> DescribedGroup:
    """The group's row in a ShareGroupDescribe response. Deleted topics are left out."""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR,
        members=[_member(member, image) for member in group.members.values()],
    )


def _member(member: ShareMember, image: Image) -> Member:
    topics = []
    for topic_id, partitions in by_topic(member.assigned).items():
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            topics.append(TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=partitions))
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.names),
        assignment=Assignment(topic_partitions=topics),
    )
