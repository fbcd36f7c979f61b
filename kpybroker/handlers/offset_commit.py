"""OffsetCommit (8): commit the offsets of a group.

v2 to v4 have a retention time; v6 has leader epochs; v7 has static members (KIP-345); v8 is flexible; v9 can return
GROUP_ID_NOT_FOUND and the errors of KIP-848; v10 has topic ids instead of names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import CommitOffsets, PartitionCommit
from kpybroker.serving.fair_loop import SLICE, Turns, slices
from kpybroker.wire.rpc.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.metadata.image import OffsetsOf

GROUP_ID_NOT_FOUND_SINCE = 9
TOPIC_IDS_SINCE = 10


Known = tuple[str, bytes, list[PartitionCommit]]


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return an error code for each partition. If the group is refused, every existing partition has that error."""
    by_id = call.version >= TOPIC_IDS_SINCE
    known: list[Known] = []
    answers: list[OffsetCommitResponsePartition] = []
    topics = []
    turns = Turns(broker.long_work)
    async for topic in turns.through(request.topics):
        image = broker.metadata.image.topic_by_id(topic.topic_id) if by_id else broker.metadata.image.topic(topic.name)
        told = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=[])
        place = None if image is None else broker.metadata.image.offsets_of(image)
        for some in slices(topic.partitions):
            answered, commits, accepted = _sort(some, place, by_id)
            told.partitions += answered
            if place is not None and commits:
                known.append((place.topic, place.topic_id, commits))
                answers += accepted
            if len(answers) >= SLICE:
                await _commit(broker, call, request, known, answers)
                known, answers = [], []
            elif len(some) == SLICE:
                await turns.turn()
        if told.partitions:
            topics.append(told)
    if known:
        await _commit(broker, call, request, known, answers)
    return Response(topics=topics)


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition."""
    return Response(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=ask.partition_index, error_code=refusal.code)
                    for ask in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _commit(
    broker: Broker, call: Call, request: Request, known: list[Known], answers: list[OffsetCommitResponsePartition]
) -> None:
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
        runner = broker.coordinators.groups.runner(request.group_id, may_be_empty=True)
        codes = await runner.ask(command, broker.config.offsets_commit_timeout_ms)
    except KafkaError as refusal:
        codes = [refusal.code] * len(answers)
    for answer, code in zip(answers, codes, strict=True):
        answer.error_code = code


def _sort(
    asked: Sequence[OffsetCommitRequestPartition], place: OffsetsOf | None, by_id: bool
) -> tuple[list[OffsetCommitResponsePartition], list[PartitionCommit], list[OffsetCommitResponsePartition]]:
    """The response rows of a topic's partitions, the commits for existing partitions, and the rows of those commits."""
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if place is None and by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answered, commits, accepted = [], [], []
    for each in asked:
        answer = OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=unknown)
        answered.append(answer)
        index = None if place is None else place.stored(each.partition_index)
        if index is not None:
            accepted.append(answer)
            commits.append(
                PartitionCommit(
                    index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata or "",
                )
            )
    return answered, commits, accepted
