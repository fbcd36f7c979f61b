"""Metadata (3): return the brokers, the topics, and the leader of each partition.

In v0 an empty list of topics means all topics; from v1 on, null does. v4 contains whether topics may be created; v8 to
v10 can return authorized operations on the cluster; v9 is flexible; v10 returns topic ids (KIP-516); v12 requests can
name topics by id; v13 has a top-level error code.

Encoded responses are cached until the next Image is published. Apart from the request and the Image they depend only on
the brokers that have just left and, with an authorizer, on the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.names import check_topic_name
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.serving.authorization import allows, is_shown
from kpybroker.serving.authorized_operations import NOT_ASKED, cluster_operations_of, operations_of
from kpybroker.serving.fair_loop import Turns
from kpybroker.topics import is_internal
from kpybroker.wire.codec.codec import build, build_in_turns
from kpybroker.wire.codec.primitives import ZERO_UUID
from kpybroker.wire.encoded import Encoded
from kpybroker.wire.rpc.metadata import (
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.metadata.image import Image, TopicImage

TOPIC = AclResource.TOPIC
Asked = tuple[str | None, bytes]
"""The name of a topic, or None, and its id."""
Departed = tuple[int, ...]
Operations = Callable[[str], int]
"""The authorized operations on a topic."""
TOPICS_AT_ONCE = 100
"""A response with up to this many topics is built without a pause, unless they have many partitions."""
KEPT_TOPICS_MAX = 1000
"""Responses to requests that name more topics than this are not cached."""
KEY_BYTES_A_TOPIC = 500
"""The size of one topic name in the key of a cached response: a string of 249 characters, and two objects."""
KEPT_NAME_MAX = 249
"""Responses to requests with longer names are not cached; no topic can have such a name."""


async def handle(broker: Broker, call: Call, request: Request) -> Encoded:
    """Return the metadata. Missing topics are created first if the client and this broker allow that."""
    turns = Turns(broker.long_work)
    wants_all = _wants_all(request, call.version)
    asked = [] if wants_all else request.topics or []
    uncreatable: frozenset[str] = frozenset()
    if not wants_all:
        for topic in asked:
            if topic.topic_id != ZERO_UUID:
                topic.name = None  # the Java client sends an empty name with an id
        if request.allow_auto_topic_creation:
            missing = [t.name for t in asked if t.name is not None and broker.metadata.image.topic(t.name) is None]
            uncreatable = await _uncreatable(broker, call, missing, turns)
            if missing := [name for name in missing if name not in uncreatable]:
                await broker.topic_creation.wanted(missing)
    names: tuple[Asked, ...] | None = None if wants_all else tuple(dict.fromkeys((t.name, t.topic_id) for t in asked))
    departed = broker.metadata.departed()
    key: tuple[object, ...] = (call.version, names, request.include_topic_authorized_operations)
    key += (request.include_cluster_authorized_operations, call.listener, departed)
    if broker.metadata.authorizer is not None:
        key += (call.principal, call.host, uncreatable)
    keeps = len(asked) <= KEPT_TOPICS_MAX and all(len(t.name or "") <= KEPT_NAME_MAX for t in asked)
    found = broker.metadata.answers.get(key) if keeps else None
    if found is None:
        image = broker.metadata.image
        if len(image.readable if names is None else names) <= TOPICS_AT_ONCE:
            work = _describe(broker, image, call, request, names, departed, uncreatable, turns)
            found = Encoded(build(await work, call.version))
        elif not keeps:
            return await _described(broker, image, call, request, names, departed, uncreatable)
        else:  # equal requests that arrive in the meantime wait for the same response
            found = asyncio.ensure_future(_described(broker, image, call, request, names, departed, uncreatable))
        if keeps and broker.metadata.image is image:  # otherwise the response was built from earlier topics and ACLs
            broker.metadata.answers.keep(key, found, KEY_BYTES_A_TOPIC * len(asked))
    return found if isinstance(found, Encoded) else await asyncio.shield(found)


async def _uncreatable(broker: Broker, call: Call, missing: list[str], turns: Turns) -> frozenset[str]:
    """The topics in the request that the caller may describe but not create."""
    if broker.metadata.authorizer is None or not broker.config.auto_create_topics_enable:
        return frozenset()
    wanted = [Operation.DESCRIBE, Operation.CREATE]
    if is_shown(broker, call, Operation.CREATE, AclResource.CLUSTER):
        wanted = [Operation.DESCRIBE]
    refused = set()
    async for name in turns.through(missing):
        if not all(allows(broker, call, each, TOPIC, name) for each in wanted):
            refused.add(name)
    return frozenset(refused)


async def _described(
    broker: Broker,
    image: Image,
    call: Call,
    request: Request,
    names: tuple[Asked, ...] | None,
    departed: Departed,
    uncreatable: frozenset[str],
) -> Encoded:
    """Build and encode the response over several turns of the event loop."""
    work = broker.long_work
    response = await _describe(broker, image, call, request, names, departed, uncreatable, Turns(work))
    return Encoded(await work.through(build_in_turns(response, call.version)))


def _wants_all(request: Request, version: int) -> bool:
    return request.topics is None or (version == 0 and not request.topics)


async def _describe(
    broker: Broker,
    image: Image,
    call: Call,
    request: Request,
    names: tuple[Asked, ...] | None,
    departed: Departed,
    uncreatable: frozenset[str],
    turns: Turns,
) -> Response:
    def operations(topic: str) -> int:
        if not request.include_topic_authorized_operations:
            return NOT_ASKED
        return operations_of(broker, call, TOPIC, topic)

    def visible(topic: str) -> bool:
        return allows(broker, call, Operation.DESCRIBE, TOPIC, topic)

    live = image.live_brokers()
    topics = []
    if names is None:
        async for topic in turns.through(list(image.readable.values())):
            if not is_shown(broker, call, Operation.DESCRIBE, TOPIC, topic.name):
                continue
            topics.append(_topic(topic, live, operations))
            turns.add(len(topic.partitions))
    else:
        async for name, topic_id in turns.through(names):
            known = name
            if name is None and (found := image.topic_by_id(topic_id)) is not None:
                known = found.name
            if known is not None and (known in uncreatable or not visible(known)):
                topics.append(_hidden(name, topic_id, call.version))
                continue
            topics.append(_asked(broker, image, name, topic_id, operations, call.version))
            turns.add(len(topics[-1].partitions))
    # never empty: librdkafka drops brokers that are not in the response, and may not recover from an empty list
    endpoints = broker.metadata.endpoints
    brokers = endpoints(call.listener, departed) or endpoints(call.listener, (broker.node_id,))
    return Response(
        brokers=[
            MetadataResponseBroker(node_id=node, host=host, port=port, rack=rack) for node, host, port, rack in brokers
        ],
        cluster_id=broker.storage.cluster_id,
        controller_id=broker.metadata.any_live_broker(),
        topics=topics,
        cluster_authorized_operations=cluster_operations_of(broker, call)
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def refuse(request: Request, refusal: KafkaError) -> Response:
    """The error of each topic, and from v13 on of the whole request. Below v13, a request for all topics cannot be told
    an error."""
    topics = [
        MetadataResponseTopic(error_code=refusal.code, name=each.name or "", topic_id=each.topic_id, partitions=[])
        for each in request.topics or []
    ]
    return Response(error_code=refusal.code, brokers=[], topics=topics)


def _hidden(name: str | None, topic_id: bytes, version: int) -> MetadataResponseTopic:
    """A row for a topic that the caller may not describe, whether or not it exists. If the request has only the id, the
    row has no name."""
    return MetadataResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        name=name if name is not None or version >= 12 else "",
        topic_id=topic_id if name is None else ZERO_UUID,
        partitions=[],
    )


def _asked(
    broker: Broker, image: Image, name: str | None, topic_id: bytes, operations: Operations, version: int
) -> MetadataResponseTopic:
    if name is None:
        found = image.topic_by_id(topic_id)
        if found is None:
            shown = None if version >= 12 else ""
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=shown, topic_id=topic_id, partitions=[]
            )
        return _topic(found, image.live_brokers(), operations)
    topic = image.topic(name)
    if topic is not None:
        return _topic(topic, image.live_brokers(), operations)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except KafkaError as refusal:
        code = refusal.code
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        is_internal=is_internal(name),
        partitions=[],
        topic_authorized_operations=operations(name),
    )


def _topic(topic: TopicImage, live: frozenset[int], operations: Operations) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=is_internal(topic.name),
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
        topic_authorized_operations=operations(topic.name),
    )
