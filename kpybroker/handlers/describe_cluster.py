"""DescribeCluster (60): list the brokers with their addresses on the caller's listener, and the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import CONTROLLER, Call
from kpybroker.errors import ErrorCode
from kpybroker.serving.authorized_operations import NOT_ASKED, cluster_operations_of
from kpybroker.wire.rpc.describe_cluster import DescribeClusterBroker, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

BROKERS = 1
CONTROLLERS = 2


def handle(broker: Broker, call: Call, request: Request) -> Response:
    operations = cluster_operations_of(broker, call) if request.include_cluster_authorized_operations else NOT_ASKED
    here = CONTROLLERS if call.side == CONTROLLER else BROKERS
    if request.endpoint_type in (BROKERS, CONTROLLERS) and request.endpoint_type != here:
        return Response(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="Ask controllers about controllers, and brokers about brokers, each on a listener of its own",
            endpoint_type=BROKERS,
        )
    if request.endpoint_type == CONTROLLERS:
        return Response(
            endpoint_type=CONTROLLERS,
            cluster_id=broker.storage.cluster_id,
            controller_id=broker.quorum.leader_id,
            brokers=_controllers(broker, call.listener),
            cluster_authorized_operations=operations,
        )
    if request.endpoint_type != BROKERS:
        return Response(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
            endpoint_type=BROKERS,
        )
    return Response(
        endpoint_type=BROKERS,
        cluster_id=broker.storage.cluster_id,
        controller_id=broker.metadata.any_live_broker(),
        brokers=_brokers(broker, call.listener, request.include_fenced_brokers),
        cluster_authorized_operations=operations,
    )


def _controllers(broker: Broker, listener: str) -> list[DescribeClusterBroker]:
    """The voters of the quorum, any of which may become the active controller (KIP-919)."""
    return [
        DescribeClusterBroker(broker_id=node_id, host=host, port=port)
        for node_id, endpoints in broker.quorum.voter_endpoints()
        for name, host, port in endpoints
        if name == listener
    ]


def _brokers(broker: Broker, listener: str, include_fenced: bool) -> list[DescribeClusterBroker]:
    return [
        DescribeClusterBroker(broker_id=known.id, host=host, port=port, rack=known.rack, is_fenced=known.fenced)
        for known in broker.metadata.image.brokers.values()
        for name, host, port, _ in known.endpoints
        if name == listener and (include_fenced or not known.fenced)
    ]
