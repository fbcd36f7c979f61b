"""Finds the share session of a request, and refuses requests that are invalid as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.shares.partition import Acknowledgement, AcknowledgeType
from kpybroker.shares.sessions import OPENING, SessionKey, ShareSession

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.call import Call
    from kpybroker.topics import TopicIdPartition
    from kpybroker.wire.rpc import share_acknowledge, share_fetch

    Named = tuple[TopicIdPartition, list[Any]]
    """A partition in a request, and its acknowledgement batches."""


def key_of(request: share_fetch.Request | share_acknowledge.Request) -> SessionKey:
    """The key of the request's share session: the group and the member. Raises INVALID_REQUEST."""
    if not request.member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    return SessionKey(request.group_id or "", request.member_id)


def named(request: share_fetch.Request | share_acknowledge.Request) -> list[Named]:
    """The partitions of a request, with their acknowledgement batches."""
    found: list[Named] = []
    for topic in request.topics:
        topic_id = bytes(topic.topic_id)
        found += [((topic_id, each.partition_index), each.acknowledgement_batches) for each in topic.partitions]
    return found


def session_of_fetch(broker: Broker, call: Call, request: share_fetch.Request) -> ShareSession:
    """Find the session of a ShareFetch, and add and remove partitions as requested. Raises KafkaError."""
    key = key_of(request)
    if request.is_renew_ack and (request.max_wait_ms or request.min_bytes or request.max_bytes or request.max_records):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "a ShareFetch that renews must ask for no records and must not wait"
        )
    sessions, rows = broker.coordinators.share_leader.sessions, named(request)
    if request.share_session_epoch == OPENING:
        if any(batches for _, batches in rows):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "the fetch that opens a share session must not acknowledge records"
            )
        session = sessions.open(key, call.connection, broker.config.group_share_max_share_sessions)
    else:
        session = sessions.resume(key, request.share_session_epoch)
    session.add([place for place, _ in rows])
    for topic in request.forgotten_topics_data:
        topic_id = bytes(topic.topic_id)
        session.forget([(topic_id, index) for index in topic.partitions])
    return session


def session_of_acknowledgement(broker: Broker, request: share_acknowledge.Request) -> ShareSession:
    """Find the session of a ShareAcknowledge. Raises KafkaError."""
    key = key_of(request)
    if request.share_session_epoch == OPENING:
        raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "only a fetch opens a share session")
    return broker.coordinators.share_leader.sessions.resume(key, request.share_session_epoch)


def read_batches(batches: list[Any], *, may_renew: bool) -> list[Acknowledgement]:
    """The acknowledgements of one partition. Raises INVALID_REQUEST if they are out of order, have the wrong number of
    types or have an unknown type."""
    last = -1
    found = []
    for batch in batches:
        types = batch.acknowledge_types
        size = batch.last_offset - batch.first_offset + 1
        if batch.first_offset < 0 or size < 1 or batch.first_offset < last:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the acknowledgement batches are not in order")
        if not types or (len(types) > 1 and len(types) != size):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{len(types)} types for {size} records: give one for all, or one for each"
            )
        highest = AcknowledgeType.RENEW if may_renew else AcknowledgeType.REJECT
        if any(not AcknowledgeType.GAP <= each <= highest for each in types):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "an acknowledge type is unknown, or not allowed in this request"
            )
        last = batch.last_offset
        found.append(Acknowledgement(batch.first_offset, batch.last_offset, types))
    return found
