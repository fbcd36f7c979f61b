"""Checks for all requests between nodes of the quorum: the cluster id, the partition and the leader epoch."""

from __future__ import annotations

from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.raft.driver import Driver
from kpybroker.topics import METADATA_TOPIC


def check_cluster(driver: Driver, request: Any) -> None:
    """Check the cluster id in a request. Raises INCONSISTENT_CLUSTER_ID."""
    if request.cluster_id is not None and request.cluster_id != driver.identity.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"this node belongs to cluster {driver.identity.cluster_id}, not to {request.cluster_id}",
        )


def only_partition(driver: Driver, request: Any) -> Any:
    """Return the request's only row, for `__cluster_metadata-0`. Raises INCONSISTENT_CLUSTER_ID or INVALID_REQUEST."""
    check_cluster(driver, request)
    rows = [
        (topic.name if hasattr(topic, "name") else topic.topic_name, partition)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if len(rows) != 1 or rows[0][0] != METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the quorum has only one partition, {METADATA_TOPIC}-0")
    return rows[0][1]


def check_leader(driver: Driver, epoch: int) -> ErrorCode:
    """The error for a request to the leader of `epoch`; NONE if this node is that leader."""
    state = driver.state
    if epoch < state.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > state.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if state.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER


def leader_endpoints(driver: Driver, kind: Any) -> list[Any]:
    """The leader's address as a list of one NodeEndpoint of this `kind`; empty if the address is unknown."""
    address = driver.addresses.of(driver.leader_id)
    if address is None:
        return []
    return [kind(node_id=driver.leader_id, host=address.host, port=address.port)]
