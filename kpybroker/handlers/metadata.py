"""Metadata (3): brokers, topics and who leads each partition.

v0 an empty list means all topics, v1+ null does; v4 says whether topics may be created; v8 to v10 what the asker may
do with the cluster; v9 flexible; v10 topic ids (KIP-516); v12 topics asked by id; v13 a top-level error.
Answers depend on the Image and on who has just left, so they are kept, encoded, until the next Image is published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call, Encoded
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.partition import INTERNAL_TOPICS
from kpybroker.wire.message import build
from kpybroker.wire.primitives import ZERO_UUID
from kpybroker.wire.rpc.metadata import (
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker import Broker
    from kpybroker.metadata.image import TopicImage

NOT_ASKED = -(2**31)
TOPIC_OPERATIONS = 3576
"""Read, write, create, delete, alter, describe, describe configs, alter configs: all, without an authorizer."""
CLUSTER_OPERATIONS = 8096
"""Create, alter, describe, cluster action, describe configs, alter configs, idempotent write."""


async def handle(broker: Broker, call: Call, request: Request) -> Encoded:
    """Topics that are not there are created first, where both sides allow it."""
    if _wants_all(request, call.version):
        key: tuple[object, ...] = (call.version, None)
    else:
        asked = request.topics or []
        for topic in asked:
            if topic.topic_id != ZERO_UUID:
                topic.name = None  # Java asks by id with an empty name
        if request.allow_auto_topic_creation:
            missing = [t.name for t in asked if t.name is not None and t.name not in broker.image.topics]
            if missing:
                await broker.auto_create(missing)
        key = (call.version, tuple(dict.fromkeys((t.name, t.topic_id) for t in asked)))
    departed = broker.departed()
    key += (request.include_topic_authorized_operations, request.include_cluster_authorized_operations)
    key += (call.listener, departed)
    found = broker.answers.get(key)
    if found is None:
        found = broker.answers[key] = Encoded(build(_describe(broker, call, request, departed), call.version))
    return found


def _wants_all(request: Request, version: int) -> bool:
    return request.topics is None or (version == 0 and not request.topics)


def _describe(broker: Broker, call: Call, request: Request, departed: tuple[int, ...]) -> Response:
    image = broker.image
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    if _wants_all(request, call.version):
        topics = [_topic(broker, topic, operations) for topic in image.topics.values()]
    else:
        asked = dict.fromkeys((t.name, t.topic_id) for t in request.topics or [])
        topics = [_asked(broker, name, topic_id, operations, call.version) for name, topic_id in asked]
    # never without any: librdkafka forgets the brokers that are not named, and from none it may never come back
    brokers = broker.endpoints(call.listener, departed) or broker.endpoints(call.listener, (broker.node_id,))
    return Response(
        brokers=[
            MetadataResponseBroker(node_id=node, host=host, port=port, rack=rack) for node, host, port, rack in brokers
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.any_live_broker(),
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def _asked(broker: Broker, name: str | None, topic_id: bytes, operations: int, version: int) -> MetadataResponseTopic:
    if name is None:
        found = broker.image.topic_by_id(topic_id)
        if found is None:
            shown = None if version >= 12 else ""
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=shown, topic_id=topic_id, partitions=[]
            )
        return _topic(broker, found, operations)
    topic = broker.image.topic(name)
    if topic is not None:
        return _topic(broker, topic, operations)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        broker.check_topic_name(name)
    except KafkaError as refusal:
        code = refusal.code
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[],
        topic_authorized_operations=operations,
    )


def _topic(broker: Broker, topic: TopicImage, operations: int) -> MetadataResponseTopic:
    live = broker.image.live_brokers()
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            MetadataResponsePartition(
                error_code=ErrorCode.NONE if p.leader in live else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=index,
                leader_id=p.leader if p.leader in live else -1,
                leader_epoch=p.leader_epoch,
                replica_nodes=list(p.replicas),
                isr_nodes=list(p.isr),
                offline_replicas=[node_id for node_id in p.replicas if node_id not in live],
            )
            for index, p in enumerate(topic.partitions)
        ],
        topic_authorized_operations=operations,
    )
