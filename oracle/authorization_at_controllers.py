"""Requests for `oracle.authorization` that are sent to a controller's listener: requests of nodes, and requests that
clients may also send to a controller."""

from typing import Any

from kpybroker.raft.log.identity import METADATA_TOPIC_ID
from kpybroker.security.authorizer import Operation
from kpybroker.security.principal import ANONYMOUS, encode_principal
from kpybroker.wire.api import Listens, by_name
from kpybroker.wire.codec.codec import build
from kpybroker.wire.frame import request_head
from kpybroker.wire.rpc import (
    allocate_producer_ids,
    alter_partition,
    assign_replicas_to_dirs,
    begin_quorum_epoch,
    broker_heartbeat,
    broker_registration,
    controller_registration,
    describe_cluster,
    end_quorum_epoch,
    envelope,
    fetch,
    fetch_snapshot,
    incremental_alter_configs,
    update_raft_voter,
    vote,
)
from oracle.authorization import C, Case, G, Make, State, T

ELSEWHERE = "another cluster's id"
"""Requests that would change the quorum name another cluster, so that they have no effect."""
METADATA = "__cluster_metadata"


def _plain(request: Any) -> Make:
    return lambda _: request


def _enveloped(api: str) -> Make:
    """A request in an Envelope, forwarded for a super user."""
    row = by_name[api]
    frame = request_head(7, row, row.max, "inside") + bytes(build(row.request(), row.max))
    return _plain(
        envelope.Request(
            request_data=frame,
            request_principal=encode_principal(ANONYMOUS),
            client_host_address=bytes([127, 0, 0, 1]),
        )
    )


def _fetch() -> fetch.Request:
    rows = [fetch.FetchPartition(fetch_offset=0, partition_max_bytes=1)]
    return fetch.Request(
        cluster_id=ELSEWHERE,
        replica_state=fetch.ReplicaState(replica_id=77),
        topics=[fetch.FetchTopic(topic=METADATA, topic_id=METADATA_TOPIC_ID, partitions=rows)],
    )


def _altered(state: State) -> alter_partition.Request:
    rows = [alter_partition.PartitionData(new_isr_with_epochs=[alter_partition.BrokerState(broker_id=99)])]
    topics = [alter_partition.TopicData(topic_id=state.ids["t"], partitions=rows)]
    return alter_partition.Request(broker_id=99, broker_epoch=1, topics=topics)


ACTION = ((Operation.CLUSTER_ACTION, C),)
OF_NODES = tuple(
    Case(api, make, ACTION, at_controller=True, what=what)
    for api, make, what in (
        ("Vote", _plain(vote.Request(cluster_id=ELSEWHERE)), ""),
        ("BeginQuorumEpoch", _plain(begin_quorum_epoch.Request(cluster_id=ELSEWHERE)), ""),
        ("EndQuorumEpoch", _plain(end_quorum_epoch.Request(cluster_id=ELSEWHERE)), ""),
        ("FetchSnapshot", _plain(fetch_snapshot.Request(cluster_id=ELSEWHERE)), ""),
        ("Fetch", _plain(_fetch()), "of the metadata log"),
        ("UpdateRaftVoter", _plain(update_raft_voter.Request(cluster_id=ELSEWHERE, voter_id=9)), ""),
        ("AlterPartition", _altered, ""),
        ("AllocateProducerIds", _plain(allocate_producer_ids.Request(broker_id=99, broker_epoch=1)), ""),
        ("AssignReplicasToDirs", _plain(assign_replicas_to_dirs.Request(broker_id=99, broker_epoch=1)), ""),
        ("BrokerHeartbeat", _plain(broker_heartbeat.Request(broker_id=99, broker_epoch=1)), ""),
        ("BrokerRegistration", _plain(broker_registration.Request(broker_id=99, cluster_id=ELSEWHERE)), ""),
        ("Envelope", _enveloped("UpdateFeatures"), "of a request that is forwarded"),
        ("Envelope", _enveloped("Metadata"), "of a request that is not forwarded"),
        ("ControllerRegistration", _plain(controller_registration.Request(controller_id=99)), ""),
    )
)


LOGGERS = Case(
    "IncrementalAlterConfigs",
    _plain(
        incremental_alter_configs.Request(
            resources=[
                incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[])
                for kind, name in ((2, "no"), (2, "t"), (4, "1"), (8, "1"), (16, "metrics"), (32, "g"))
            ],
            validate_only=True,
        )
    ),
    (
        (Operation.ALTER_CONFIGS, T),
        (Operation.ALTER_CONFIGS, T, "no"),
        (Operation.ALTER_CONFIGS, G),
        (Operation.ALTER_CONFIGS, C),
        (Operation.CLUSTER_ACTION, C),
    ),
    what="of all types",
    at_controller=True,
)
"""Unlike a broker, a controller requires CLUSTER_ACTION for its loggers."""


def at_controllers(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The cases that a controller's listener also serves, sent to this listener; and the cases of nodes' requests."""
    both = [
        case._replace(at_controller=True)
        for case in cases
        if by_name[case.api].listens is Listens.BOTH
        and case.api not in OTHERWISE_THERE
        and case.title != LOGGERS.title.removesuffix(" at a controller")
    ]
    cluster = describe_cluster.Request(endpoint_type=2, include_cluster_authorized_operations=True)
    own = Case(
        "DescribeCluster",
        _plain(cluster),
        ((Operation.ALTER, C), (Operation.DESCRIBE, C)),
        what="of controllers",
        at_controller=True,
    )
    return (*both, own, LOGGERS, *OF_NODES)


OTHERWISE_THERE = frozenset(
    {
        *("Fetch", "DescribeCluster"),
        *("DescribeUserScramCredentials", "DescribeDelegationToken"),
    }
)
"""A controller serves other requests of the first two APIs; Apache Kafka 4.3.1 fails at requests of the other APIs
(docs/roadmap.md)."""
