"""StreamsGroupHeartbeat (88): join, stay in and leave a streams group (KIP-1071).

The broker creates the internal topics that the application lacks, if the client may create them.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import StreamsBeat, StreamsHeartbeat
from kpybroker.groups.streams.configuration import MISSING_INTERNAL_TOPICS, SHOWN_MAX
from kpybroker.groups.streams.heartbeats import check_request
from kpybroker.metadata.image import STREAMS_FEATURE
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.serving.authorization import allows, is_shown
from kpybroker.serving.streams_topology import check_topic_names
from kpybroker.wire.rpc.streams_group_heartbeat import Request, Response, Status

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

PROTOCOL = "streams"
KEPT_HEARTBEATS = 2
"""The number of heartbeat intervals for which a failure to create internal topics is stored."""


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Respond once the changes caused by the heartbeat have been committed."""
    try:
        check_served(broker)
        if request.topology is not None:
            check_topic_names(request.topology)
        check_request(request)
        command = StreamsHeartbeat(request, call.client_id or "", f"/{call.host}")
        runner = broker.coordinators.groups.runner(request.group_id)
        beat: StreamsBeat = await runner.ask(command, broker.config.offsets_commit_timeout_ms)
    except KafkaError as refusal:
        return Response(error_code=refusal.code, error_message=refusal.message)
    if beat.missing:
        _create(broker, call, beat)
    return beat.response


def check_served(broker: Broker) -> None:
    """Raises UNSUPPORTED_VERSION if the cluster or this broker does not serve the streams protocol."""
    if not broker.metadata.image.features.get(STREAMS_FEATURE, 0):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"The feature {STREAMS_FEATURE} is 0 in this cluster.")
    if PROTOCOL not in broker.config.group_coordinator_rebalance_protocols:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def _create(broker: Broker, call: Call, beat: StreamsBeat) -> None:
    """Begin to create the missing topics, and add the reasons to the response if that is impossible."""
    refused = _uncreatable(broker, call, beat.missing)
    if refused:
        _add(beat.response, f"; Unauthorized to CREATE on topics {', '.join(refused)}.")
        return
    topics = broker.coordinators.streams_topics
    topics.create(call, beat.missing, KEPT_HEARTBEATS * beat.response.heartbeat_interval_ms)
    failed = topics.failures(beat.missing)
    if failed:
        shown = ", ".join(f"{name} ({why})" for name, why in islice(failed.items(), SHOWN_MAX))
        more = len(failed) - SHOWN_MAX
        _add(beat.response, f"; Creation failed: {shown}{f' and {more} more' if more > 0 else ''}.")


def _uncreatable(broker: Broker, call: Call, topics: Collection[str]) -> list[str]:
    if broker.metadata.authorizer is None or is_shown(broker, call, Operation.CREATE, AclResource.CLUSTER):
        return []
    return [name for name in topics if not allows(broker, call, Operation.CREATE, AclResource.TOPIC, name)]


def _add(response: Response, text: str) -> None:
    """Append a text to the detail of the status that lists the missing topics."""
    told: list[Status] = response.status or []
    for status in told:
        if status.status_code == MISSING_INTERNAL_TOPICS:
            status.status_detail += text
