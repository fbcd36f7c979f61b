"""TxnOffsetCommit (28): commit the offsets of a group as part of a transaction.

v2 has leader epochs; v3 is flexible and has the member id and generation (KIP-447); v4 can return
TRANSACTION_ABORTABLE; v5 adds the group's partition of `__consumer_offsets` to the transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import CommitOffsets, PartitionCommit
from kpybroker.serving.fair_loop import SLICE, Turns, slices
from kpybroker.storage.producers.transactions import NOT_NEEDED
from kpybroker.topics import OFFSETS_TOPIC, TopicPartition
from kpybroker.wire.rpc.txn_offset_commit import (
    Request,
    Response,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

NO_RETENTION = -1
LOADING_SINCE = 2
ABORTABLE_SINCE = 4
ADDS_SINCE = 5


Known = tuple[str, bytes, list[PartitionCommit]]


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return an error code for each partition. If the group is refused, every existing partition has that error."""
    known: list[Known] = []
    answers: list[TxnOffsetCommitResponsePartition] = []
    response = Response()
    turns = Turns(broker.long_work)
    async for topic in turns.over(request.topics):
        image = broker.metadata.image.topic(topic.name)
        place = None if image is None else broker.metadata.image.offsets_of(image)
        told = TxnOffsetCommitResponseTopic(name=topic.name, partitions=[])
        response.topics.append(told)
        commits = []
        async for each in turns.over(topic.partitions):
            answer = TxnOffsetCommitResponsePartition(partition_index=each.partition_index)
            told.partitions.append(answer)
            index = None if place is None else place.stored(each.partition_index)
            if index is not None:
                answers.append(answer)
                metadata = each.committed_metadata or ""
                commits.append(PartitionCommit(index, each.committed_offset, each.committed_leader_epoch, metadata))
            else:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if place is not None and commits:
            known.append((place.topic, place.topic_id, commits))
    if known:
        try:
            codes = await _commit(broker, call, request, known)
        except KafkaError as refusal:
            codes = [_in_clients_words(refusal.code, call.version)] * len(answers)
        for answer, code in zip(answers, codes, strict=True):
            answer.error_code = code
    return response


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition."""
    return Response(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=ask.partition_index, error_code=refusal.code)
                    for ask in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _commit(broker: Broker, call: Call, request: Request, known: list[Known]) -> list[ErrorCode]:
    """Check the transaction and commit the offsets. Return an error code for each partition. Raises KafkaError."""
    # raises if this broker does not coordinate the group: the transaction coordinator must not be called then
    broker.coordinators.groups.runner(request.group_id)
    place = (OFFSETS_TOPIC, broker.coordinators.groups.partition_for(request.group_id))
    who = request.producer_id, request.producer_epoch
    producers = broker.replication.hosting.leads(*place).log.producers
    adds = call.version >= ADDS_SINCE
    verified = producers.verify(*who, 0, broker.world.wall_ms(), bumps=adds)
    if not adds and not broker.config.transaction_partition_verification_enable:
        verified = NOT_NEEDED
    elif verified is not None:
        await _ask(broker, request, place, adds=adds)
        if adds and producers.is_void(verified):  # see `serving/produce/transactional.py`
            verified = producers.verify(*who, 0, broker.world.wall_ms(), bumps=adds)
            await _ask(broker, request, place, adds=adds)
    runner = broker.coordinators.groups.runner(request.group_id)
    producers = broker.replication.hosting.leads(*place).log.producers
    producers.require_transaction(*who, verified)
    producers.check_epoch(*who)
    codes: list[ErrorCode] = []
    for some in _in_slices(known):
        command = CommitOffsets(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            NO_RETENTION,
            some,
            knows_group_id_not_found=False,
            transaction=who,
        )
        codes += await runner.ask(command, broker.config.offsets_commit_timeout_ms)
    return codes


def _in_slices(known: list[Known]) -> Iterator[list[Known]]:
    """The commits in slices of slightly more than SLICE partitions."""
    piece: list[Known] = []
    room = SLICE
    for topic, topic_id, commits in known:
        for some in slices(commits):
            piece.append((topic, topic_id, list(some)))
            room -= len(some)
            if room <= 0:
                yield piece
                piece, room = [], SLICE
    if piece:
        yield piece


async def _ask(broker: Broker, request: Request, place: TopicPartition, *, adds: bool) -> None:
    who = request.producer_id, request.producer_epoch
    told = await broker.coordinators.transactions_client.verify(request.transactional_id, *who, [place], add=adds)
    if told[place]:
        raise KafkaError(told[place])


def _in_clients_words(code: ErrorCode, version: int) -> ErrorCode:
    if code == ErrorCode.NETWORK_EXCEPTION:  # with the original error, clients would look up the coordinator again
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_SINCE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return ErrorCode.NOT_COORDINATOR
    return code
