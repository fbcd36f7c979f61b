"""OffsetCommit (8): keep how far a group has read.

v2 to v4 a retention time; v6 leader epochs; v7 static members (KIP-345); v8 flexible; v9 GROUP_ID_NOT_FOUND and the
codes of KIP-848; v10 topic ids instead of names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.commands import CommitOffsets, PartitionCommit
from kpybroker.wire.rpc.offset_commit import (
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker import Broker
    from kpybroker.metadata.image import TopicImage

GROUP_ID_NOT_FOUND_SINCE = 9
TOPIC_IDS_SINCE = 10


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """A code per partition; what concerns the whole group is said at each partition that is known."""
    by_id = call.version >= TOPIC_IDS_SINCE
    known: list[tuple[str, bytes, list[PartitionCommit]]] = []
    answers: list[OffsetCommitResponsePartition] = []
    topics = []
    for topic in request.topics:
        image = broker.image.topic_by_id(topic.topic_id) if by_id else broker.image.topic(topic.name)
        answered, commits, accepted = _sort(topic, image, by_id)
        if answered:
            topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answered))
        if image is not None and commits:
            known.append((image.name, image.id, commits))
            answers += accepted
    if known:
        command = CommitOffsets(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            request.retention_time_ms,
            known,
            knows_group_id_not_found=call.version >= GROUP_ID_NOT_FOUND_SINCE,
        )
        try:
            runner = broker.groups.runner(request.group_id, may_be_empty=True)
            codes = await runner.ask(command, broker.config.offsets_commit_timeout_ms)
        except KafkaError as refusal:
            codes = [refusal.code] * len(answers)
        for answer, code in zip(answers, codes, strict=True):
            answer.error_code = code
    return Response(topics=topics)


def _sort(
    topic: OffsetCommitRequestTopic, image: TopicImage | None, by_id: bool
) -> tuple[list[OffsetCommitResponsePartition], list[PartitionCommit], list[OffsetCommitResponsePartition]]:
    """All answers of a topic; the commits to partitions that exist; and the answers these will fill in."""
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if image is None and by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partitions = 0 if image is None else len(image.partitions)
    answered, commits, accepted = [], [], []
    for each in topic.partitions:
        answer = OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=unknown)
        answered.append(answer)
        if 0 <= each.partition_index < partitions:
            accepted.append(answer)
            commits.append(
                PartitionCommit(
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                )
            )
    return answered, commits, accepted
