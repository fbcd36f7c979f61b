"""More requests for `oracle.authorization`: in older versions, and with contents that need further operations."""

from typing import Any

from kpybroker.security.authorizer import Operation
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import (
    add_partitions_to_txn,
    consumer_group_heartbeat,
    create_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_topic_partitions,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from oracle.authorization import CASES, OTHER, C, Case, G, State, T, X, _fetched, _produced, _txn_commit

UNKNOWN_ID = bytes(15) + b"9"


def _unwatched(state: State) -> produce.Request:
    request = _produced(state)
    request.acks = 0
    return request


def _of_an_unknown_id(request: Any) -> Any:
    """The same request, with additional rows for an id that no topic has."""
    topics = request.topic_data if hasattr(request, "topic_data") else request.topics
    topics[1].topic_id = UNKNOWN_ID
    return request


def _in_a_session(state: State) -> fetch.Request:
    request = _fetched(state)
    request.session_epoch = 0
    return request


def _of_a_follower_by_name(state: State) -> fetch.Request:
    request = _fetched(state)
    request.replica_id = 77
    return request


def _named(*names: str, **facts: Any) -> metadata.Request:
    topics = [metadata.MetadataRequestTopic(name=name) for name in names]
    return metadata.Request(**{"topics": topics, "allow_auto_topic_creation": False, **facts})


def _opened(state: State) -> Any:
    """The request that adds both topics to the transaction."""
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in ("t", OTHER)]
    return add_partitions_to_txn.Request(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=state.producer[0],
        v3_and_below_producer_epoch=state.producer[1],
        v3_and_below_topics=topics,
    )


def _added(state: State) -> Any:
    request = _opened(state)
    request.v3_and_below_topics.append(add_partitions_to_txn.AddPartitionsToTxnTopic(name="no", partitions=[0]))
    return request


def _create(*names: str) -> create_topics.Request:
    topics = [create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    return create_topics.Request(topics=topics, validate_only=True, timeout_ms=5000)


def _log_start(name: str) -> list_offsets.ListOffsetsTopic:
    return list_offsets.ListOffsetsTopic(name=name, partitions=[list_offsets.ListOffsetsPartition()])


def _epoch(name: str) -> offset_for_leader_epoch.OffsetForLeaderTopic:
    rows = [offset_for_leader_epoch.OffsetForLeaderPartition()]
    return offset_for_leader_epoch.OffsetForLeaderTopic(topic=name, partitions=rows)


def _broken(*names: str) -> Any:
    """A CreateTopics request with invalid names, so that no topic is created."""
    return lambda _: _named(*names, allow_auto_topic_creation=True)


OLDEST = frozenset(
    {
        *("AddOffsetsToTxn", "AddPartitionsToTxn", "AlterClientQuotas", "AlterConfigs", "AlterReplicaLogDirs"),
        *("ConsumerGroupDescribe", "CreateAcls", "CreatePartitions", "DeleteAcls", "DeleteGroups"),
        *("DeleteRecords", "DescribeAcls", "DescribeClientQuotas", "DescribeCluster", "DescribeConfigs"),
        *("DescribeGroups", "DescribeLogDirs", "DescribeQuorum", "ElectLeaders", "EndTxn", "Heartbeat"),
        *("IncrementalAlterConfigs", "JoinGroup", "ListGroups", "ListOffsets", "ListTransactions"),
        *("OffsetCommit", "OffsetDelete", "OffsetForLeaderEpoch", "SyncGroup", "TxnOffsetCommit"),
        *("UpdateFeatures", "WriteTxnMarkers", "Produce", "Fetch", "AddRaftVoter", "DescribeDelegationToken"),
        *("AlterPartitionReassignments", "LeaveGroup", "FindCoordinator", "InitProducerId", "CreateTopics"),
    }
)
"""APIs whose requests are sent in their oldest version, too. The others have separate cases, or only one version."""

NOT_THEN = {"Fetch v4 of a follower", "FindCoordinator v0 of transactions", "AddPartitionsToTxn v0"}
"""Cases that are not repeated in the oldest version, because it lacks the fields that they use."""

OWN_CASES = (
    Case("Produce", _unwatched, ((Operation.WRITE, T),), what="with acks=0", has_response=False),
    Case("Produce", _unwatched, ((Operation.WRITE, T),), 9, what="with acks=0", has_response=False),
    Case(
        "Produce", lambda state: _of_an_unknown_id(_produced(state)), ((Operation.WRITE, T),), what="to an unknown id"
    ),
    *(
        Case(
            "Produce",
            lambda state: _produced(state, "x"),
            ((Operation.WRITE, X), (Operation.WRITE, T)),
            version,
            what="in a transaction",
        )
        for version in (12, 13)
    ),
    Case("Fetch", _in_a_session, ((Operation.READ, T),), what="in a session"),
    Case("Fetch", _in_a_session, ((Operation.READ, T),), 12, what="in a session"),
    Case("Fetch", lambda state: _of_an_unknown_id(_fetched(state)), ((Operation.READ, T),), what="of an unknown id"),
    Case("Fetch", _of_a_follower_by_name, ((Operation.CLUSTER_ACTION, C),), 12, what="of a follower"),
    Case(
        "ListOffsets",
        lambda _: list_offsets.Request(replica_id=77, topics=[_log_start("t"), _log_start(OTHER)]),
        ((Operation.DESCRIBE, T),),
        what="of a follower",
    ),
    Case(
        "OffsetForLeaderEpoch",
        lambda _: offset_for_leader_epoch.Request(replica_id=77, topics=[_epoch("t"), _epoch(OTHER), _epoch("no")]),
        ((Operation.DESCRIBE, T),),
        what="of a follower",
        besides=((Operation.CLUSTER_ACTION, C),),
    ),
    Case("Metadata", lambda _: metadata.Request(topics=[]), ((Operation.DESCRIBE, T),), 0, what="of all topics"),
    Case("Metadata", lambda _: metadata.Request(topics=None), ((Operation.DESCRIBE, T),), 1, what="of all topics"),
    Case(
        "Metadata",
        lambda _: metadata.Request(
            topics=None, include_topic_authorized_operations=True, include_cluster_authorized_operations=True
        ),
        ((Operation.DESCRIBE, T), (Operation.READ, T), (Operation.DESCRIBE, C), (Operation.ALTER, C)),
        10,
        what="of all topics and operations",
    ),
    *(
        Case(
            "Metadata",
            lambda _: _named("t", OTHER, "no", "__consumer_offsets"),
            ((Operation.DESCRIBE, T), (Operation.DESCRIBE, T, "no"), (Operation.DESCRIBE, T, "__consumer_offsets")),
            version,
            what="without operations",
        )
        for version in (4, 9, 11, 13)
    ),
    *(
        Case(
            "Metadata",
            _broken("a b", "c d"),
            ((Operation.DESCRIBE, T, "a b"), (Operation.CREATE, T, "a b")),
            version,
            what="that creates topics",
            besides=((Operation.CREATE, C),),
        )
        for version in (4, 13)
    ),
    *(
        Case(
            "CreateTopics",
            lambda _: _create("new", "newer"),
            ((Operation.DESCRIBE_CONFIGS, T, "new"),),
            version,
            what="that returns settings",
        )
        for version in (4, 5, 7)
    ),
    Case(
        "CreateTopics",
        lambda _: _create("__cluster_metadata"),
        ((Operation.CREATE, T, "__cluster_metadata"),),
        what="of the metadata log",
        besides=((Operation.CREATE, C),),
    ),
    Case(
        "FindCoordinator",
        lambda _: find_coordinator.Request(key_type=2, coordinator_keys=["g", OTHER]),
        ((Operation.CLUSTER_ACTION, C),),
        what="of share groups",
    ),
    Case(
        "ConsumerGroupHeartbeat",
        lambda _: consumer_group_heartbeat.Request(
            group_id="k", member_id="nobody", member_epoch=3, subscribed_topic_names=[OTHER]
        ),
        ((Operation.DESCRIBE, T, OTHER),),
        what="that subscribes to another topic",
    ),
    Case(
        "DescribeTopicPartitions",
        lambda _: describe_topic_partitions.Request(
            topics=[describe_topic_partitions.TopicRequest(name=name) for name in ("__consumer_offsets", "no", "t")],
            response_partition_limit=3,
        ),
        ((Operation.DESCRIBE, T), (Operation.DESCRIBE, T, "__consumer_offsets"), (Operation.DESCRIBE, T, "no")),
        what="in pages",
    ),
    Case(
        "DescribeTopicPartitions",
        lambda _: describe_topic_partitions.Request(
            topics=[], cursor=describe_topic_partitions.Cursor(topic_name="t"), response_partition_limit=1
        ),
        ((Operation.DESCRIBE, T), (Operation.DESCRIBE, T, OTHER)),
        what="beginning at a topic",
    ),
    Case(
        "AddPartitionsToTxn",
        lambda state: _added(state),
        ((Operation.WRITE, X), (Operation.WRITE, T), (Operation.WRITE, T, "no")),
        3,
        what="with a missing topic",
    ),
    Case(
        "FindCoordinator",
        lambda _: find_coordinator.Request(key_type=9, coordinator_keys=["g"]),
        ((Operation.CLUSTER_ACTION, C),),
        what="of an unknown type",
    ),
    Case(
        "DescribeGroups",
        lambda _: describe_groups.Request(groups=["g", OTHER], include_authorized_operations=True),
        ((Operation.DESCRIBE, G), (Operation.DELETE, G), (Operation.READ, G)),
        what="with operations",
    ),
    Case(
        "DescribeCluster",
        lambda _: describe_cluster.Request(include_cluster_authorized_operations=True),
        ((Operation.DESCRIBE, C), (Operation.ALTER, C), (Operation.CLUSTER_ACTION, C)),
        what="with operations",
    ),
    Case(
        "DescribeTransactions",
        lambda _: describe_transactions.Request(transactional_ids=["x", "no"]),
        ((Operation.DESCRIBE, X), (Operation.DESCRIBE, T)),
        what="with topics",
        before=(("AddPartitionsToTxn", 3, _opened),),
    ),
    *(
        Case(
            "EndTxn",
            lambda state: end_txn.Request(
                transactional_id="x", producer_id=state.producer[0], producer_epoch=state.producer[1], committed=True
            ),
            ((Operation.WRITE, X),),
            version,
            what="with topics",
            before=(("AddPartitionsToTxn", 3, _opened),),
        )
        for version in (3, 5)
    ),
    Case("TxnOffsetCommit", _txn_commit, ((Operation.WRITE, X), (Operation.READ, G), (Operation.READ, T))),
    Case(
        "InitProducerId",
        lambda state: init_producer_id.Request(
            transactional_id="x",
            transaction_timeout_ms=60_000,
            producer_id=state.producer[0],
            producer_epoch=state.producer[1],
        ),
        ((Operation.WRITE, X),),
        what="that goes on",
    ),
    Case(
        "DescribeConfigs",
        lambda _: describe_configs.Request(
            resources=[
                describe_configs.DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=["no.such.setting"]
                )
                for kind, name in ((2, "no"), (2, "t"), (4, "1"), (8, "1"), (16, "metrics"), (32, "g"), (32, "no"))
            ]
        ),
        (
            (Operation.DESCRIBE_CONFIGS, T),
            (Operation.DESCRIBE_CONFIGS, T, "no"),
            (Operation.DESCRIBE_CONFIGS, G),
            (Operation.DESCRIBE_CONFIGS, C),
        ),
        what="of all types",
    ),
    Case(
        "IncrementalAlterConfigs",
        lambda _: incremental_alter_configs.Request(
            resources=[
                incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[])
                for kind, name in ((2, "no"), (2, "t"), (4, "1"), (8, "1"), (16, "metrics"), (32, "g"))
            ],
            validate_only=True,
        ),
        (
            (Operation.ALTER_CONFIGS, T),
            (Operation.ALTER_CONFIGS, T, "no"),
            (Operation.ALTER_CONFIGS, G),
            (Operation.ALTER_CONFIGS, C),
        ),
        what="of all types",
    ),
)


def _in_the_oldest_version() -> list[Case]:
    """The cases of the APIs in OLDEST, in their oldest version, unless another case covers that version already."""
    titles = {case.title for case in (*CASES, *OWN_CASES)}
    found = {}
    for case in CASES:
        older = case._replace(version=by_name[case.api].min)
        if case.api in OLDEST and older.title not in titles | NOT_THEN:
            found[older.title] = older
    return list(found.values())


VERSIONS = (*OWN_CASES, *_in_the_oldest_version())
