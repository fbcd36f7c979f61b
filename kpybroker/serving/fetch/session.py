"""Resolves the partitions of a Fetch and its fetch session (KIP-227). A `Want` is one partition in a Fetch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kpybroker.replication.partition.sessions import FINAL_EPOCH, INITIAL_EPOCH, ReplicaWant, Session, SessionKey, Want
from kpybroker.wire.rpc.fetch import FetchPartition, FetchTopic, Request

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def resolve(broker: Broker, request: Request, by_id: bool) -> tuple[Session | None, list[Want]]:
    """The session of a Fetch, if it has one, and all its wants, including those of the session."""
    session, named = resume(broker, request, by_id, Want)
    return session, named if session is None else list(session.wants.values())


def resume(
    broker: Broker, request: Request, by_id: bool, make: Callable[..., Want]
) -> tuple[Session | None, list[Want]]:
    """The session of a Fetch, if it has one, and the wants that the request names, built by `make`.

    Raises the same KafkaErrors as `Sessions.resume` and `Sessions.update`.
    """
    wants: OrderedDict[SessionKey, Want] = OrderedDict()
    for topic in request.topics:
        name_wants(wants, topic, topic.partitions, by_id, make)
    return resume_with(broker, request, by_id, wants, is_replica=make is ReplicaWant)


def name_wants(
    wants: OrderedDict[SessionKey, Want],
    topic: FetchTopic,
    partitions: Sequence[FetchPartition],
    by_id: bool,
    make: Callable[..., Want],
) -> None:
    """Add the wants for some partitions of a topic to `wants`."""
    name = None if by_id else topic.topic
    for p in partitions:
        key = (topic.topic_id if name is None else name, p.partition)
        want = make(name, topic.topic_id, p.partition, p.fetch_offset, p.partition_max_bytes, p.current_leader_epoch)
        if type(want) is ReplicaWant:
            want.tell_of_log(p.last_fetched_epoch, p.log_start_offset)
        wants[key] = want


def resume_with(
    broker: Broker, request: Request, by_id: bool, wants: OrderedDict[SessionKey, Want], *, is_replica: bool
) -> tuple[Session | None, list[Want]]:
    """Like `resume`, for wants that have already been built."""
    sessions, session_id, epoch = broker.replication.sessions, request.session_id, request.session_epoch
    if epoch == FINAL_EPOCH:
        if session_id:
            sessions.close(session_id)
        return None, list(wants.values())
    if epoch == INITIAL_EPOCH:
        if session_id:
            sessions.close(session_id)
        session = sessions.open(wants, by_id=by_id, is_replica=is_replica) if wants else None
        return session, list(wants.values())
    session = sessions.resume(session_id, epoch, by_id=by_id, is_replica=is_replica)
    forgotten: list[SessionKey] = []
    for gone in request.forgotten_topics_data:
        forgotten += [(gone.topic_id if by_id else gone.topic, index) for index in gone.partitions]
    return session, sessions.update(session, wants, forgotten)
