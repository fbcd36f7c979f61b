"""FindCoordinator (10): return the broker that coordinates a group, a transactional id or a share partition.

v1 has key types; v3 is flexible; v4 has several keys in a request (KIP-699); v6 has share partitions (KIP-932), which
only brokers look up. If the internal topic of the coordinator does not exist yet, the request creates it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.serving.fair_loop import Turns
from kpybroker.shares.keys import parse_key
from kpybroker.topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_TOPIC
from kpybroker.wire.rpc.find_coordinator import Coordinator, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

log = logging.getLogger(__name__)

GROUP, TRANSACTION, SHARE = 0, 1, 2
MANY_KEYS_SINCE = 4
SHARES_SINCE = 6
KEPT_IN = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTION_TOPIC, SHARE: SHARE_STATE_TOPIC}


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the coordinator of each key, or an error."""
    if call.version >= MANY_KEYS_SINCE:
        keys = Turns(broker.long_work).over(request.coordinator_keys)
        return Response(coordinators=[await _find(broker, call, request.key_type, key) async for key in keys])
    found = await _find(broker, call, request.key_type, request.key)
    return Response(
        error_code=found.error_code,
        error_message=found.error_message or ErrorCode.NONE.name,  # as in Kafka below v4
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def refuse(request: Request, refusal: KafkaError) -> Response:
    """The error of each key; below v4 the error of the only key."""
    return Response(
        error_code=refusal.code,
        error_message=refusal.message,
        node_id=-1,
        port=-1,
        coordinators=[_unknown(key, refusal) for key in request.coordinator_keys],
    )


def _unknown(key: str, refusal: KafkaError) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=refusal.code, error_message=refusal.message)


async def _find(broker: Broker, call: Call, key_type: int, key: str) -> Coordinator:
    refusal = _refusal(call, key_type, key)
    if refusal is None:
        try:
            node_id, host, port = await _coordinator_of(broker, call, key_type, key)
        except KafkaError as not_found:
            refusal = not_found
    if refusal is not None:
        return _unknown(key, refusal)
    return Coordinator(key=key, node_id=node_id, host=host, port=port, error_message="")


def _refusal(call: Call, key_type: int, key: str) -> KafkaError | None:
    """The error if the request is invalid. Clients do not retry this error; with a retriable one they would repeat the
    request forever."""
    if key_type not in KEPT_IN:
        return KafkaError(ErrorCode.INVALID_REQUEST, f"this broker does not serve coordinators of type {key_type}")
    if key_type != SHARE:
        return None
    if call.version < SHARES_SINCE:
        return KafkaError(ErrorCode.INVALID_REQUEST, f"keys of share partitions need version {SHARES_SINCE} or later")
    try:
        parse_key(key)
    except ValueError as wrong:
        return KafkaError(ErrorCode.INVALID_REQUEST, f"a key of share partitions is group:topicId:partition; {wrong}")
    return None


async def _coordinator_of(broker: Broker, call: Call, key_type: int, key: str) -> tuple[int, str, int]:
    kept_in = KEPT_IN[key_type]
    coordinator = broker.coordinators.of(kept_in)
    topic = broker.metadata.image.topic(kept_in)
    if topic is None:
        try:
            await broker.topic_creation.internal(kept_in)
        except KafkaError as refusal:
            log.warning("%s", refusal.message)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.message) from refusal
        await coordinator.loaded()  # otherwise this broker might refuse the client's next requests
        topic = broker.metadata.image.topic(kept_in)
    if topic is not None:
        leader = topic.partitions[coordinator.partition_for(key)].leader
        for node_id, host, port, _ in broker.metadata.endpoints(call.listener):
            if node_id == leader:
                return node_id, host, port
    raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its partition of the internal topic has no leader")
