"""OffsetFetch (9): return the committed offsets of groups.

In v2 a null list of topics means all topics, and the response has a top-level error code; v5 has leader epochs; v6 is
flexible; v7 has require_stable (KIP-447); v8 has several groups (KIP-709); v9 has member ids and epochs (KIP-848); v10
has topic ids instead of names.

For an unknown group, or a partition without a committed offset, the offset is -1 and there is no error. Offsets of a
deleted topic are not returned, even if a new topic has the same name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import FetchOffsets
from kpybroker.metadata.retirements import topic_of_retired
from kpybroker.serving.fair_loop import Turns, partitions_in_slices
from kpybroker.serving.metadata_wait import caught_up
from kpybroker.wire.rpc.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.groups.offsets.offsets import Shown
    from kpybroker.metadata.image import Image

TOP_LEVEL_ERROR_SINCE = 2
MANY_GROUPS_SINCE = 8
TOPIC_IDS_SINCE = 10
NO_OFFSET = -1
NO_TOPIC_ID = bytes(16)


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the offsets of each group, or an error."""
    turns = Turns(broker.long_work)
    if call.version >= MANY_GROUPS_SINCE:
        by_id = call.version >= TOPIC_IDS_SINCE
        asked_groups = turns.over(request.groups, lambda each: each.group_id)
        groups = [await _group(broker, group, by_id, request.require_stable, turns) async for group in asked_groups]
        for group in groups:
            if group.error_code:
                group.topics = []
        return Response(groups=groups)
    topics = request.topics
    asked = None
    if topics is not None:
        asked = [OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes) for each in topics]
    only = OffsetFetchRequestGroup(group_id=request.group_id, topics=asked)
    return _as_one(await _group(broker, only, False, request.require_stable, turns), call)


def refuse(request: Request, refusal: KafkaError) -> Response:
    """The error of each group; below v8 the error of the only one, for which v1 has no field."""
    groups = [OffsetFetchResponseGroup(group_id=each.group_id, error_code=refusal.code) for each in request.groups]
    return Response(error_code=refusal.code, groups=groups)


async def _group(
    broker: Broker, asked: OffsetFetchRequestGroup, by_id: bool, require_stable: bool, turns: Turns
) -> OffsetFetchResponseGroup:
    answer = OffsetFetchResponseGroup(group_id=asked.group_id)
    who = asked.group_id, asked.member_id, asked.member_epoch
    try:
        runner = broker.coordinators.groups.runner(asked.group_id, may_be_empty=True)
        if asked.topics is None:
            command = FetchOffsets(who[0], None, *who[1:], require_stable)
            found = await runner.ask(command, broker.config.request_timeout_ms)
            async for name, offsets in turns.through(found):
                answer.topics += [topic for topic in _all_of(broker, name, offsets) if topic.partitions]
                turns.add(len(offsets))
            return answer
        await _name_once(asked.topics, turns)
        if any(_may_be_new(broker, each, by_id) for each in asked.topics):
            await caught_up(broker)
        wanted = [(_name(broker, each, by_id), each) async for each in turns.through(asked.topics)]
        found = []
        known = (_stored(broker, name, each.partition_indexes) for name, each in wanted if name is not None)
        for number, some in enumerate(partitions_in_slices(known)):
            if number:
                await turns.turn()
            command = FetchOffsets(who[0], some, *who[1:], require_stable)
            found += await runner.ask(command, broker.config.request_timeout_ms)
        pieces = iter(found)
        async for asked_name, each in turns.through(wanted):
            answer.topics.append(_told(broker, asked_name, each, pieces, by_id))
            turns.add(len(each.partition_indexes))
    except KafkaError as refusal:
        answer.error_code = refusal.code
        answer.topics = [_refused(each, refusal.code) async for each in turns.through(asked.topics or [])]
    return answer


def _told(
    broker: Broker,
    name: str | None,
    asked: OffsetFetchRequestTopics,
    pieces: Iterator[tuple[str, list[tuple[int, Shown]]]],
    by_id: bool,
) -> OffsetFetchResponseTopics:
    """The row of one topic. `pieces` contains its offsets in slices."""
    if name is None:
        return _refused(asked, ErrorCode.UNKNOWN_TOPIC_ID)
    offsets = next(pieces)[1]
    if len(offsets) < len(asked.partition_indexes):
        offsets = list(offsets)
        while len(offsets) < len(asked.partition_indexes):
            offsets += next(pieces)[1]
    topic = _topic(broker.metadata.image, name, offsets, all_asked=True)
    if not by_id:
        topic.topic_id = NO_TOPIC_ID
    return topic


async def _name_once(topics: Iterable[OffsetFetchRequestTopics], turns: Turns) -> None:
    """Remove repeated partitions, because each one could return 4 KB of metadata (see `serving/fair_loop.py`)."""
    named: defaultdict[tuple[str, bytes], set[int]] = defaultdict(set)
    async for topic in turns.through(topics):
        before = named[topic.name, topic.topic_id]
        topic.partition_indexes = [each for each in dict.fromkeys(topic.partition_indexes) if each not in before]
        before.update(topic.partition_indexes)


def _name(broker: Broker, asked: OffsetFetchRequestTopics, by_id: bool) -> str | None:
    if not by_id:
        return asked.name
    topic = broker.metadata.image.topic_by_id(asked.topic_id)
    return None if topic is None else topic.name


def _may_be_new(broker: Broker, asked: OffsetFetchRequestTopics, by_id: bool) -> bool:
    """Whether these may be retired partitions that this broker does not know yet. Without their offsets, a consumer
    would begin at others than its group has committed."""
    image, name = broker.metadata.image, _name(broker, asked, by_id)
    topic = None if name is None else topic_of_retired(name)
    if name is None or topic not in image.topics or name in image.topics:
        return False
    shown = image.topic(name)
    return shown is None or any(index >= len(shown.partitions) for index in asked.partition_indexes)


def _stored(broker: Broker, name: str, indexes: Sequence[int]) -> tuple[str, Sequence[int]]:
    """The topic under which the offsets of a topic are stored, and the indexes there."""
    image = broker.metadata.image
    topic = image.topic(name) if image.retirements else None
    if topic is None:
        return name, indexes
    place = image.offsets_of(topic)
    return place.topic, [place.shown(index) for index in indexes]


def _all_of(broker: Broker, name: str, offsets: list[tuple[int, Shown]]) -> Iterator[OffsetFetchResponseTopics]:
    """The row of a topic, and that of its retired partitions if they are shown."""
    image = broker.metadata.image
    retirement = image.retirement(name)
    if retirement is None:
        yield _topic(image, name, offsets)
        return
    yield _topic(image, name, [each for each in offsets if each[0] < retirement.in_use])
    if retirement.is_shown and image.retired(retirement.name) is not None:
        yield _topic(image, retirement.name, [each for each in offsets if each[0] >= retirement.in_use])


def _topic(
    image: Image, name: str, offsets: list[tuple[int, Shown]], *, all_asked: bool = False
) -> OffsetFetchResponseTopics:
    """The row of the current topic with this name, from its stored offsets. Partitions without an offset are omitted
    unless `all_asked`."""
    topic = image.topic(name)
    topic_id = NO_TOPIC_ID if topic is None else topic.id
    place = None if topic is None else image.offsets_of(topic)
    partitions = []
    for index, committed in offsets:
        current = None
        partition = index if place is None else place.shown(index)
        if isinstance(committed, ErrorCode):
            partitions.append(_nothing(partition, committed))
            continue
        if committed is not None and place is not None and committed.topic_id in (place.topic_id, NO_TOPIC_ID):
            current = committed if place.last is None or partition < place.partitions else None
        if current is not None:
            partitions.append(
                OffsetFetchResponsePartitions(
                    partition_index=partition,
                    committed_offset=current.offset,
                    committed_leader_epoch=current.leader_epoch,
                    metadata=current.metadata,
                )
            )
        elif all_asked:
            partitions.append(_nothing(partition))
    return OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=partitions)


def _nothing(partition: int, code: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=NO_OFFSET, committed_leader_epoch=-1, metadata="", error_code=code
    )


def _refused(asked: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=[_nothing(partition, code) for partition in asked.partition_indexes],
    )


def _as_one(group: OffsetFetchResponseGroup, call: Call) -> Response:
    """The response for a single group. In v1, which has no top-level error code, each partition has the error."""
    return Response(
        error_code=group.error_code,
        topics=[]
        if group.error_code and call.version >= TOP_LEVEL_ERROR_SINCE
        else [
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )
