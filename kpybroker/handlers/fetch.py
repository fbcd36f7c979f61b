"""Fetch (1): return batches from an offset on, when `min_bytes` are available or `max_wait_ms` have passed.

v7 has incremental fetch sessions (KIP-227); v9 has leader epochs (KIP-320); v12 is flexible; v13 has topic ids
(KIP-516). The implementation is in `serving/fetch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kpybroker.call import CONTROLLER, Call, Result
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.partition.sessions import FINAL_EPOCH
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.serving.authorization import allows, require
from kpybroker.serving.fetch.consumer import ConsumerView
from kpybroker.serving.fetch.metadata_log import fetch_metadata, is_of_the_quorum
from kpybroker.serving.fetch.reply import begin
from kpybroker.serving.fetch.session import resolve
from kpybroker.serving.fetch.single import fetch_one
from kpybroker.wire.rpc.fetch import FetchableTopicResponse, PartitionData, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

OF_SESSIONS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
WANTS_AT_ONCE: Final = 1000
"""How many partitions a Fetch examines without a pause, in about five milliseconds. A Fetch with more partitions
examines them over several turns of the event loop."""


def handle(broker: Broker, call: Call, request: Request) -> Result:
    """Return the response if it is complete, otherwise a reply that waits for data."""
    by_id = call.version >= 13
    replica_id = request.replica_id  # -1 in a consumer's request
    if call.version >= 15:
        replica_id = -1 if request.replica_state is None else request.replica_state.replica_id
    if call.side == CONTROLLER:
        if replica_id < 0 or not is_of_the_quorum(request):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "a controller's listener serves Fetch only to replicas of the metadata log"
            )
        require(broker, call, Operation.CLUSTER_ACTION, AclResource.CLUSTER)
        return fetch_metadata(broker, call, request, replica_id)
    if replica_id >= 0:
        from kpybroker.serving.fetch.replica import check_size, fetch_replica

        check_size(call, request)
        if not allows(broker, call, Operation.CLUSTER_ACTION, AclResource.CLUSTER):
            return _refuse_rows(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return fetch_replica(broker, call, request, replica_id)
    if call.is_long:
        from kpybroker.serving.fetch.many import begin_many, fetch_in_turns

        if not broker.metadata.image.views:
            return fetch_in_turns(broker, call, request, by_id, begin_many)
        from kpybroker.serving.fetch.filtered import begin_filtered

        return fetch_in_turns(broker, call, request, by_id, begin_filtered)
    is_nearby = request.rack_id and broker.config.is_rack_aware
    if request.session_epoch == FINAL_EPOCH and not request.session_id and len(request.topics) == 1 and not is_nearby:
        fetched = fetch_one(broker, call, request)
        if fetched is not None:
            return fetched
    session, wants = resolve(broker, request, by_id)
    if broker.metadata.image.views:
        from kpybroker.serving.fetch.filtered import begin_filtered, reads_views

        if reads_views(broker, wants):
            return begin_filtered(broker, call, request, session, wants)
    if is_nearby:
        from kpybroker.serving.fetch.nearby import NearbyView

        return begin(NearbyView(broker, call, request, session, wants))
    view = ConsumerView(broker, call, request, session, wants)
    if len(wants) > WANTS_AT_ONCE:
        from kpybroker.serving.fetch.many import ManyFetchReply

        return ManyFetchReply(view).begin()
    return begin(view)


def _refuse_rows(request: Request, code: ErrorCode, top_level: ErrorCode = ErrorCode.NONE) -> Response:
    """Refuse every partition in a request."""
    return Response(
        error_code=top_level,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    PartitionData(partition_index=each.partition, error_code=code, high_watermark=-1, records=b"")
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse the whole Fetch. v4 to v6 have no top-level error code, so clients look for it in the partitions; a v13
    names topics by id, and an error of its session concerns no partition."""
    names_topics = any(topic.topic for topic in request.topics)
    if not names_topics or refusal.code in OF_SESSIONS:
        return Response(error_code=refusal.code, responses=[])
    return _refuse_rows(request, refusal.code, top_level=refusal.code)
