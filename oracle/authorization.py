"""Requests of each API by a user who lacks one operation, and the code that sends them.

`oracle/authorization_matrix.py` has all requests, and records the responses of Apache Kafka. The user `bob` logs in
with SASL/PLAIN. He may do everything except one operation on one resource, which a DENY forbids. Clients on the
PLAINTEXT listener are super users; one of them sets the ACLs.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kpybroker.client.dialer import Dialer
from kpybroker.client.peer import Peer
from kpybroker.config.login import Login
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.serving.authorized_operations import SUPPORTED
from kpybroker.wire.api import by_name
from kpybroker.wire.codec.primitives import ZERO_UUID
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    add_raft_voter,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    remove_raft_voter,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from kpybroker.world.real import real_world

USER, PASSWORD = "bob", "bobs"
OWNER = "carl"
"""A user who owns a delegation token, and has no permissions."""
LISTENER, OF_CONTROLLERS = "NAMED", "STEERING"
"""The listeners with logins: for clients, and for controllers."""
_LOGINS = (
    f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}" '
    f'user_{OWNER}="{PASSWORD}";'
)
SETTINGS = {
    "listener.security.protocol.map": (
        f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{LISTENER}:SASL_PLAINTEXT,{OF_CONTROLLERS}:SASL_PLAINTEXT"
    ),
    "controller.listener.names": f"CONTROLLER,{OF_CONTROLLERS}",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config": _LOGINS,
    f"listener.name.{OF_CONTROLLERS.lower()}.plain.sasl.jaas.config": _LOGINS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "delegation.token.secret.key": "a secret of the nodes",
    "connection.failed.authentication.delay.ms": "0",
    "log.retention.ms": "-1",
}
"""The settings of the broker, besides those of its listeners."""
DENY, ALLOW, LITERAL = 2, 3, 3
T, G, C, X = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER, AclResource.TRANSACTIONAL_ID
D, U = AclResource.DELEGATION_TOKEN, AclResource.USER
NAMES = {T: "t", G: "g", C: "kafka-cluster", X: "x", D: "*", U: "User:carl"}
OTHER = "u"
"""A topic and a group without denials."""
WITH_MEMBER = "m"
KEPT = frozenset(
    {
        "token_requester_principal_name",
        *("error_code", "partition_error_code", "topic_config_error_code", "name", "topic", "topic_name", "group_id"),
        *("key", "transactional_id", "resource_name", "resource_type", "user", "entity_name", "num_partitions"),
        *("partition_index", "partition", "partition_id", "index", "is_internal", "member_id", "group"),
    }
)
"""The fields that are compared: errors, and information that a user might not be allowed to see."""

WHERE_NODES_ARE = frozenset({"node_endpoints", "current_leader", "nodes", "observers", "brokers"})
"""Fields that are not compared."""


class State(NamedTuple):
    """The state of the broker when a request is sent."""

    ids: dict[str, bytes]
    producer: tuple[int, int]
    """Producer id and epoch of the transactional id."""


Make = Callable[[State], Any]
Denial = tuple[Operation, AclResource] | tuple[Operation, AclResource, str]
"""An operation on a resource: on the resource in NAMES, or on another resource with this name."""
EVERY: tuple[Denial, ...] = (
    *((operation, kind) for kind, operations in SUPPORTED.items() for operation in operations),
    *((operation, X) for operation in (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT)),
    (Operation.DESCRIBE, D),
    *((operation, U) for operation in (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS)),
)
"""All operations that can be denied."""
NOTHING, ALL_OTHERS = "nothing", "all others"


class Case(NamedTuple):
    """One request, and the operations that are denied to the user, one at a time."""

    api: str
    make: Make
    denied: tuple[Denial, ...]
    version: int | None = None
    """The version of the request; the highest one if None."""
    what: str = ""
    besides: tuple[Denial, ...] = ()
    """Operations that would suffice instead. They are denied together with each of the `denied` operations, and
    alone."""
    at_controller: bool = False
    """Whether the request is sent to a controller's listener."""
    before: tuple[tuple[str, int, Make], ...] = ()
    """Requests that a super user sends first."""
    has_response: bool = True
    """If false, the result is whether the connection stays open."""
    has_member: bool = False
    """Whether the consumer group `m` has a member with partitions of both topics."""

    @property
    def title(self) -> str:
        version = by_name[self.api].max if self.version is None else self.version
        at = " at a controller" if self.at_controller else ""
        return f"{self.api} v{version}{self.what and ' ' + self.what}{at}"

    @property
    def denials(self) -> Mapping[str, tuple[Denial, ...]]:
        """The denied operations, by title: none, each operation, and finally all operations that should have no
        effect."""
        taken: dict[str, tuple[Denial, ...]] = {NOTHING: ()}
        for each in self.denied:
            taken[_in_words(each, *self.besides)] = (each, *self.besides)
        if self.besides:
            taken |= {f"{_in_words(each)} alone": (each,) for each in (*self.denied, *self.besides)}
        matter = {*self.denied, *self.besides}
        taken[ALL_OTHERS] = tuple(each for each in EVERY if each not in matter)
        return MappingProxyType(taken)


def _in_words(*denials: Denial) -> str:
    return ", ".join(f"{each[0].name} on {' '.join((each[1].name, *each[2:]))}" for each in denials)


def _plain(request: Any) -> Make:
    return lambda _: request


def _produced(state: State, transactional_id: str | None = None) -> produce.Request:
    facts: dict[str, Any] = {}
    if transactional_id is not None:
        producer_id, epoch = state.producer
        facts = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": 0, "transactional": True}
    batch = bytes(encode_batch([(None, b"x")], timestamp_ms=1_700_000_000_000, **facts))
    return produce.Request(
        transactional_id=transactional_id,
        acks=1,
        timeout_ms=5000,
        topic_data=[
            produce.TopicProduceData(
                name=name,
                topic_id=state.ids[name],
                partition_data=[produce.PartitionProduceData(index=0, records=batch)],
            )
            for name in ("t", OTHER)
        ],
    )


def _fetched(state: State, replica_id: int = -1) -> fetch.Request:
    return fetch.Request(
        replica_state=fetch.ReplicaState(replica_id=replica_id),
        max_wait_ms=0,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[
            fetch.FetchTopic(
                topic=name,
                topic_id=state.ids[name],
                partitions=[fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)],
            )
            for name in ("t", OTHER)
        ],
    )


def _commit(state: State) -> offset_commit.Request:
    row = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    return offset_commit.Request(
        group_id="g",
        generation_id_or_member_epoch=-1,
        topics=[
            offset_commit.OffsetCommitRequestTopic(name=name, topic_id=state.ids[name], partitions=[row])
            for name in ("t", OTHER)
        ],
    )


def _txn_commit(state: State) -> txn_offset_commit.Request:
    row = txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    return txn_offset_commit.Request(
        transactional_id="x",
        group_id="g",
        producer_id=state.producer[0],
        producer_epoch=state.producer[1],
        topics=[
            txn_offset_commit.TxnOffsetCommitRequestTopic(name=name, partitions=[row]) for name in ("t", OTHER, "no")
        ],
    )


def _fetched_offsets(state: State) -> offset_fetch.Request:
    named = [
        offset_fetch.OffsetFetchRequestTopics(name=name, topic_id=state.ids[name], partition_indexes=[0])
        for name in ("t", OTHER)
    ]
    return offset_fetch.Request(
        groups=[
            offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=named),
            offset_fetch.OffsetFetchRequestGroup(group_id=OTHER, topics=named),
        ]
    )


def _resource(kind: int, name: str) -> Any:
    change = incremental_alter_configs.AlterableConfig(name="retention.ms", config_operation=0, value="604800000")
    if kind == 32:
        change = incremental_alter_configs.AlterableConfig(
            name="consumer.session.timeout.ms", config_operation=0, value="45000"
        )
    if kind == 4:
        change = incremental_alter_configs.AlterableConfig(
            name="follower.replication.throttled.rate", config_operation=0, value="1000000"
        )
    return incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])


def _replaced(kind: int, name: str) -> Any:
    return alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[])


RESOURCES = ((2, "t"), (2, OTHER), (4, ""), (32, "g"))
OF_OWNER = describe_delegation_token.Request(
    owners=[describe_delegation_token.DescribeDelegationTokenOwner(principal_type="User", principal_name=OWNER)]
)
ROW = [0]
COMMITTED = offset_fetch.OffsetFetchRequestTopic(name="t", partition_indexes=ROW)
CASES = (
    Case("Produce", _produced, ((Operation.WRITE, T),)),
    Case("Produce", _produced, ((Operation.WRITE, T),), 9),
    Case(
        "Produce",
        lambda state: _produced(state, "x"),
        ((Operation.WRITE, X), (Operation.WRITE, T)),
        11,
        what="in a transaction",
    ),
    Case("Fetch", _fetched, ((Operation.READ, T),)),
    Case("Fetch", _fetched, ((Operation.READ, T),), 12),
    Case("Fetch", lambda state: _fetched(state, 77), ((Operation.CLUSTER_ACTION, C),), what="of a follower"),
    Case(
        "ListOffsets",
        _plain(
            list_offsets.Request(
                topics=[
                    list_offsets.ListOffsetsTopic(name=name, partitions=[list_offsets.ListOffsetsPartition()])
                    for name in ("t", OTHER, "no")
                ]
            )
        ),
        ((Operation.DESCRIBE, T),),
    ),
    Case(
        "OffsetForLeaderEpoch",
        _plain(
            offset_for_leader_epoch.Request(
                replica_id=-1,
                topics=[
                    offset_for_leader_epoch.OffsetForLeaderTopic(
                        topic=name, partitions=[offset_for_leader_epoch.OffsetForLeaderPartition()]
                    )
                    for name in ("t", OTHER)
                ],
            )
        ),
        ((Operation.DESCRIBE, T),),
        besides=((Operation.CLUSTER_ACTION, C),),
    ),
    Case("Metadata", _plain(metadata.Request(topics=None)), ((Operation.DESCRIBE, T),), what="of all topics"),
    *(
        Case(
            "Metadata",
            _plain(
                metadata.Request(
                    topics=[metadata.MetadataRequestTopic(name=name) for name in ("t", OTHER, "no")],
                    allow_auto_topic_creation=False,
                    include_topic_authorized_operations=True,
                )
            ),
            ((Operation.DESCRIBE, T), (Operation.WRITE, T)),
            version,
        )
        for version in (8, 12)
    ),
    Case(
        "Metadata",
        lambda state: metadata.Request(
            topics=[
                metadata.MetadataRequestTopic(topic_id=each, name=None) for each in (state.ids["t"], bytes(15) + b"9")
            ]
        ),
        ((Operation.DESCRIBE, T),),
        what="by id",
    ),
    *(
        Case(
            "DescribeTopicPartitions",
            _plain(
                describe_topic_partitions.Request(
                    topics=[describe_topic_partitions.TopicRequest(name=name) for name in topics],
                    response_partition_limit=100,
                )
            ),
            ((Operation.DESCRIBE, T),),
            what=what,
        )
        for topics, what in ((("t", OTHER, "no"), ""), ((), "of all topics"))
    ),
    Case(
        "CreateTopics",
        _plain(
            create_topics.Request(
                topics=[
                    create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
                    for name in ("t", "new")
                ],
                validate_only=True,
                timeout_ms=5000,
            )
        ),
        ((Operation.CREATE, T), (Operation.CREATE, T, "new")),
        besides=((Operation.CREATE, C),),
    ),
    *(
        Case(
            "DeleteTopics",
            lambda state, by_id=by_id: delete_topics.Request(  # type: ignore[misc]
                topics=[
                    delete_topics.DeleteTopicState(topic_id=state.ids["t"], name=None)
                    if by_id
                    else delete_topics.DeleteTopicState(name="t"),
                    delete_topics.DeleteTopicState(name="no"),
                ],
                timeout_ms=5000,
            ),
            ((Operation.DELETE, T), (Operation.DESCRIBE, T)),
            what="by id" if by_id else "by name",
            besides=((Operation.DELETE, C),),
        )
        for by_id in (False, True)
    ),
    Case(
        "DeleteTopics",
        _plain(delete_topics.Request(topic_names=["t", "no"], timeout_ms=5000)),
        ((Operation.DELETE, T), (Operation.DESCRIBE, T)),
        5,
        besides=((Operation.DELETE, C),),
    ),
    Case(
        "CreatePartitions",
        _plain(
            create_partitions.Request(
                topics=[
                    create_partitions.CreatePartitionsTopic(name=name, count=2, assignments=None)
                    for name in ("t", OTHER, "no")
                ],
                validate_only=True,
                timeout_ms=5000,
            )
        ),
        ((Operation.ALTER, T),),
    ),
    Case(
        "DeleteRecords",
        _plain(
            delete_records.Request(
                topics=[
                    delete_records.DeleteRecordsTopic(name=name, partitions=[delete_records.DeleteRecordsPartition()])
                    for name in ("t", OTHER, "no")
                ],
                timeout_ms=5000,
            )
        ),
        ((Operation.DELETE, T),),
    ),
    Case(
        "CreateDelegationToken",
        _plain(
            create_delegation_token.Request(
                owner_principal_type="User", owner_principal_name=OWNER, renewers=[], max_lifetime_ms=1
            )
        ),
        ((Operation.CREATE_TOKENS, U),),
    ),
    Case(
        "DescribeDelegationToken",
        _plain(OF_OWNER),
        ((Operation.DESCRIBE, D),),
        besides=((Operation.DESCRIBE_TOKENS, U),),
    ),
    Case(
        "DescribeProducers",
        _plain(
            describe_producers.Request(
                topics=[
                    describe_producers.TopicRequest(name=name, partition_indexes=ROW) for name in ("t", OTHER, "no")
                ]
            )
        ),
        ((Operation.READ, T),),
    ),
    *(
        Case(
            "FindCoordinator",
            _plain(find_coordinator.Request(key=keys[0], key_type=kind, coordinator_keys=list(keys))),
            ((Operation.DESCRIBE, resource),),
            version,
            what="of groups" if kind == 0 else "of transactions",
        )
        for kind, resource, keys in ((0, G, ("g", OTHER)), (1, X, ("x", OTHER)))
        for version in (3, 6)
    ),
    *(
        Case(
            "JoinGroup",
            _plain(
                join_group.Request(
                    group_id="g",
                    session_timeout_ms=10,
                    rebalance_timeout_ms=1000,
                    member_id="nobody",
                    protocol_type="consumer",
                    protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"")],
                )
            ),
            ((Operation.READ, G),),
            version,
        )
        for version in (6, 9)
    ),
    Case(
        "SyncGroup",
        _plain(
            sync_group.Request(
                group_id="g", generation_id=1, member_id="nobody", protocol_type="consumer", protocol_name="range"
            )
        ),
        ((Operation.READ, G),),
    ),
    Case(
        "Heartbeat",
        _plain(heartbeat.Request(group_id="g", generation_id=1, member_id="nobody")),
        ((Operation.READ, G),),
    ),
    *(
        Case(
            "LeaveGroup",
            _plain(
                leave_group.Request(
                    group_id="g", member_id="nobody", members=[leave_group.MemberIdentity(member_id="nobody")]
                )
            ),
            ((Operation.READ, G),),
            version,
        )
        for version in (2, 5)
    ),
    Case(
        "ConsumerGroupHeartbeat",
        _plain(
            consumer_group_heartbeat.Request(
                group_id="k", member_id="nobody", member_epoch=3, subscribed_topic_names=["t", OTHER]
            )
        ),
        ((Operation.DESCRIBE, T),),
        what="that subscribes",
    ),
    Case(
        "ConsumerGroupHeartbeat",
        _plain(consumer_group_heartbeat.Request(group_id="g", member_id="nobody", member_epoch=3)),
        ((Operation.READ, G),),
    ),
    Case("OffsetCommit", _commit, ((Operation.READ, G), (Operation.READ, T))),
    Case("OffsetCommit", _commit, ((Operation.READ, G), (Operation.READ, T)), 9),
    Case("TxnOffsetCommit", _txn_commit, ((Operation.WRITE, X), (Operation.READ, G), (Operation.READ, T)), 3),
    Case("OffsetFetch", _fetched_offsets, ((Operation.DESCRIBE, G), (Operation.DESCRIBE, T))),
    Case("OffsetFetch", _fetched_offsets, ((Operation.DESCRIBE, G), (Operation.DESCRIBE, T)), 9),
    *(
        Case(
            "OffsetFetch",
            _plain(offset_fetch.Request(group_id="g", topics=topics)),
            ((Operation.DESCRIBE, G), (Operation.DESCRIBE, T)),
            version,
            what="of all topics" if topics is None else "",
        )
        for topics in (None, [COMMITTED])
        for version in (5, 7)
    ),
    Case(
        "OffsetFetch",
        _plain(offset_fetch.Request(groups=[offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=None)])),
        ((Operation.DESCRIBE, G), (Operation.DESCRIBE, T)),
        9,
        what="of all topics",
    ),
    Case("DescribeGroups", _plain(describe_groups.Request(groups=["g", OTHER])), ((Operation.DESCRIBE, G),)),
    Case(
        "ConsumerGroupDescribe",
        _plain(consumer_group_describe.Request(group_ids=["g", OTHER])),
        ((Operation.DESCRIBE, G),),
    ),
    Case(
        "ConsumerGroupDescribe",
        _plain(consumer_group_describe.Request(group_ids=[WITH_MEMBER, OTHER])),
        ((Operation.DESCRIBE, T), (Operation.DESCRIBE, T, OTHER)),
        what="with a member",
        has_member=True,
    ),
    Case("ListGroups", _plain(list_groups.Request()), ((Operation.DESCRIBE, G),), besides=((Operation.DESCRIBE, C),)),
    Case("DeleteGroups", _plain(delete_groups.Request(groups_names=["g", "no"])), ((Operation.DELETE, G),)),
    Case(
        "OffsetDelete",
        _plain(
            offset_delete.Request(
                group_id="g",
                topics=[
                    offset_delete.OffsetDeleteRequestTopic(
                        name=name, partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=0)]
                    )
                    for name in ("t", OTHER, "no")
                ],
            )
        ),
        ((Operation.DELETE, G), (Operation.READ, T)),
    ),
    Case(
        "InitProducerId",
        _plain(init_producer_id.Request(transactional_id="x", transaction_timeout_ms=60_000)),
        ((Operation.WRITE, X),),
        what="of a transactional id",
    ),
    Case(
        "InitProducerId",
        _plain(init_producer_id.Request(transactional_id=None)),
        ((Operation.IDEMPOTENT_WRITE, C),),
        besides=((Operation.WRITE, T, "*"),),
    ),
    Case(
        "AddPartitionsToTxn",
        lambda state: add_partitions_to_txn.Request(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=state.producer[0],
            v3_and_below_producer_epoch=state.producer[1],
            v3_and_below_topics=[
                add_partitions_to_txn.AddPartitionsToTxnTopic(name=name, partitions=ROW) for name in ("t", OTHER)
            ],
        ),
        ((Operation.WRITE, X), (Operation.WRITE, T)),
        3,
    ),
    Case(
        "AddPartitionsToTxn",
        lambda state: add_partitions_to_txn.Request(
            transactions=[
                add_partitions_to_txn.AddPartitionsToTxnTransaction(
                    transactional_id="x",
                    producer_id=state.producer[0],
                    producer_epoch=state.producer[1],
                    verify_only=True,
                    topics=[add_partitions_to_txn.AddPartitionsToTxnTopic(name="t", partitions=ROW)],
                )
            ]
        ),
        ((Operation.CLUSTER_ACTION, C),),
    ),
    Case(
        "AddOffsetsToTxn",
        lambda state: add_offsets_to_txn.Request(
            transactional_id="x", producer_id=state.producer[0], producer_epoch=state.producer[1], group_id="g"
        ),
        ((Operation.WRITE, X), (Operation.READ, G)),
    ),
    Case(
        "EndTxn",
        lambda state: end_txn.Request(
            transactional_id="x", producer_id=state.producer[0], producer_epoch=state.producer[1], committed=False
        ),
        ((Operation.WRITE, X),),
        3,
    ),
    Case(
        "DescribeTransactions",
        _plain(describe_transactions.Request(transactional_ids=["x", "no"])),
        ((Operation.DESCRIBE, X),),
    ),
    Case("ListTransactions", _plain(list_transactions.Request()), ((Operation.DESCRIBE, X),)),
    Case(
        "WriteTxnMarkers",
        _plain(
            write_txn_markers.Request(
                markers=[
                    write_txn_markers.WritableTxnMarker(
                        producer_id=1 << 40,
                        topics=[write_txn_markers.WritableTxnMarkerTopic(name="t", partition_indexes=ROW)],
                    )
                ]
            )
        ),
        ((Operation.ALTER, C),),
        besides=((Operation.CLUSTER_ACTION, C),),
    ),
    Case(
        "DescribeConfigs",
        _plain(
            describe_configs.Request(
                resources=[
                    describe_configs.DescribeConfigsResource(
                        resource_type=kind, resource_name=name, configuration_keys=["no.such.setting"]
                    )
                    for kind, name in RESOURCES
                ]
            )
        ),
        ((Operation.DESCRIBE_CONFIGS, T), (Operation.DESCRIBE_CONFIGS, G), (Operation.DESCRIBE_CONFIGS, C)),
    ),
    Case(
        "IncrementalAlterConfigs",
        _plain(
            incremental_alter_configs.Request(resources=[_resource(*each) for each in RESOURCES], validate_only=True)
        ),
        ((Operation.ALTER_CONFIGS, T), (Operation.ALTER_CONFIGS, G), (Operation.ALTER_CONFIGS, C)),
    ),
    Case(
        "AlterConfigs",
        _plain(alter_configs.Request(resources=[_replaced(*each) for each in RESOURCES], validate_only=True)),
        ((Operation.ALTER_CONFIGS, T), (Operation.ALTER_CONFIGS, G), (Operation.ALTER_CONFIGS, C)),
    ),
    Case(
        "ElectLeaders",
        _plain(
            elect_leaders.Request(
                topic_partitions=[elect_leaders.TopicPartitions(topic="t", partitions=ROW)], timeout_ms=5000
            )
        ),
        ((Operation.ALTER, C),),
    ),
    Case(
        "AlterPartitionReassignments",
        _plain(
            alter_partition_reassignments.Request(
                topics=[
                    alter_partition_reassignments.ReassignableTopic(
                        name="t",
                        partitions=[
                            alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=None)
                        ],
                    )
                ]
            )
        ),
        ((Operation.ALTER, C),),
    ),
    Case(
        "ListPartitionReassignments",
        _plain(list_partition_reassignments.Request(topics=None)),
        ((Operation.DESCRIBE, C),),
    ),
    Case(
        "AlterReplicaLogDirs",
        _plain(
            alter_replica_log_dirs.Request(
                dirs=[
                    alter_replica_log_dirs.AlterReplicaLogDir(
                        path="/no/such",
                        topics=[alter_replica_log_dirs.AlterReplicaLogDirTopic(name="t", partitions=ROW)],
                    )
                ]
            )
        ),
        ((Operation.ALTER, C),),
    ),
    Case(
        "DescribeLogDirs",
        _plain(describe_log_dirs.Request(topics=[describe_log_dirs.DescribableLogDirTopic(topic="t", partitions=ROW)])),
        ((Operation.DESCRIBE, C),),
    ),
    Case("UnregisterBroker", _plain(unregister_broker.Request(broker_id=99)), ((Operation.ALTER, C),)),
    Case("UpdateFeatures", _plain(update_features.Request(validate_only=True)), ((Operation.ALTER, C),)),
    Case(
        "AddRaftVoter",
        _plain(add_raft_voter.Request(cluster_id=None, voter_id=9, timeout_ms=1000)),
        ((Operation.ALTER, C),),
    ),
    Case("RemoveRaftVoter", _plain(remove_raft_voter.Request(cluster_id=None, voter_id=9)), ((Operation.ALTER, C),)),
    Case(
        "DescribeQuorum",
        _plain(
            describe_quorum.Request(
                topics=[
                    describe_quorum.TopicData(
                        topic_name="__cluster_metadata", partitions=[describe_quorum.PartitionData()]
                    )
                ]
            )
        ),
        ((Operation.DESCRIBE, C),),
    ),
    Case("DescribeCluster", _plain(describe_cluster.Request()), ((Operation.DESCRIBE, C), (Operation.ALTER, C))),
    Case(
        "AlterUserScramCredentials",
        _plain(
            alter_user_scram_credentials.Request(
                deletions=[alter_user_scram_credentials.ScramCredentialDeletion(name="nobody", mechanism=1)]
            )
        ),
        ((Operation.ALTER, C),),
    ),
    Case(
        "DescribeUserScramCredentials",
        _plain(
            describe_user_scram_credentials.Request(users=[describe_user_scram_credentials.UserName(name="nobody")])
        ),
        ((Operation.DESCRIBE, C),),
    ),
    Case(
        "AlterClientQuotas",
        _plain(
            alter_client_quotas.Request(
                entries=[
                    alter_client_quotas.EntryData(
                        entity=[alter_client_quotas.EntityData(entity_type="user", entity_name="nobody")],
                        ops=[alter_client_quotas.OpData(key="producer_byte_rate", value=1e6)],
                    )
                ],
                validate_only=True,
            )
        ),
        ((Operation.ALTER_CONFIGS, C),),
    ),
    Case("DescribeClientQuotas", _plain(describe_client_quotas.Request()), ((Operation.DESCRIBE_CONFIGS, C),)),
    Case(
        "ListConfigResources",
        _plain(list_config_resources.Request(resource_types=[16])),
        ((Operation.DESCRIBE_CONFIGS, C),),
    ),
    Case(
        "DescribeAcls",
        _plain(
            describe_acls.Request(
                resource_type_filter=2,
                resource_name_filter="nothing",
                pattern_type_filter=LITERAL,
                principal_filter=None,
                host_filter=None,
                operation=1,
                permission_type=1,
            )
        ),
        ((Operation.DESCRIBE, C),),
    ),
    Case(
        "CreateAcls",
        _plain(
            create_acls.Request(
                creations=[
                    create_acls.AclCreation(
                        resource_type=2,
                        resource_name="",
                        resource_pattern_type=LITERAL,
                        principal="User:nobody",
                        host="*",
                        operation=3,
                        permission_type=ALLOW,
                    )
                ]
            )
        ),
        ((Operation.ALTER, C),),
    ),
    Case(
        "DeleteAcls",
        _plain(
            delete_acls.Request(
                filters=[
                    delete_acls.DeleteAclsFilter(
                        resource_type_filter=2,
                        resource_name_filter="nothing",
                        pattern_type_filter=LITERAL,
                        principal_filter=None,
                        host_filter=None,
                        operation=1,
                        permission_type=1,
                    )
                ]
            )
        ),
        ((Operation.ALTER, C),),
    ),
)


def told(message: Any) -> Any:
    """The compared fields of a response. Rows are sorted by their text, because their order has no meaning."""
    if isinstance(message, list):
        return sorted((told(each) for each in message), key=json.dumps)
    found = {}
    for name in getattr(type(message), "__slots__", ()):
        if name in WHERE_NODES_ARE:
            continue
        value = getattr(message, name)
        if isinstance(value, list) and value and hasattr(value[0], "__slots__"):
            found[name] = told(value)
        elif name in KEPT or "authorized_operations" in name:
            found[name] = value
        elif name == "topic_id":
            found[name] = "none" if value == ZERO_UUID else "an id"
        elif hasattr(type(value), "__slots__") and not isinstance(value, int | str | bytes | float | tuple | list):
            found[name] = told(value)
    return found


class Ports(NamedTuple):
    """The ports of a broker and its controller: `broker` and `controller` are for super users, the others for users who
    log in."""

    broker: int
    named: int
    controller: int
    steering: int


class Play:
    """Sends the requests of some cases to one broker."""

    def __init__(self, ports: Ports, cases: Iterable[Case]) -> None:
        self._ports, self._cases = ports, tuple(cases)
        self._network = real_world().network
        self._nodes: list[Peer] = []
        """The broker and the controller."""

    async def answers(self) -> dict[str, dict[str, Any]]:
        """The responses to the user, by case and by the title of the denied operations."""
        async with self.admin() as admin:
            return {case.title: await self.told(admin, case) for case in self._cases}

    @contextlib.asynccontextmanager
    async def admin(self) -> AsyncIterator[Peer]:
        """A super user, who has created all resources and has allowed the user to do everything."""
        dial = Dialer(self._network).meet
        for port in (self._ports.broker, self._ports.controller):
            self._nodes.append(await dial("127.0.0.1", port, client_id="admin"))
        try:
            await self._allow(self._nodes[0])
            yield self._nodes[0]
        finally:
            for node in self._nodes:
                node.close()

    async def _allow(self, admin: Peer) -> None:
        await self._create_token()
        everything = [_acl(Operation.ALL, kind, "*" if kind != C else NAMES[C], ALLOW) for kind in NAMES]
        await self._change(admin, everything)

    async def told(self, admin: Peer, case: Case) -> dict[str, Any]:
        """The responses to the user, by the title of the denied operations."""
        answered = {}
        for title, taken in case.denials.items():
            state = await self._prepare(admin)
            for api, version, make in case.before:
                await self._insist(admin, api, make(state), version)
            async with self._denying(admin, taken), self._member(admin, case.has_member):
                answered[title] = await self.told_once(case, state)
        return answered

    async def told_once(self, case: Case, state: State) -> Any:
        """The response that the user receives with the current ACLs."""
        port = self._ports.steering if case.at_controller else self._ports.named
        bob = await Dialer(self._network, Login("PLAIN", USER, PASSWORD)).meet("127.0.0.1", port, client_id="bob")
        request = case.make(state)
        try:
            if case.has_response:
                return told(await bob.ask(case.api, request, version=case.version))
            await bob.send(case.api, request, version=case.version)
            await bob.ask("ApiVersions", version=0)
        except ConnectionError:
            return "closed"
        finally:
            bob.close()
        return "open"

    @contextlib.asynccontextmanager
    async def _denying(self, admin: Peer, taken: Iterable[Denial]) -> AsyncIterator[None]:
        acls = [_acl(each[0], each[1], each[2] if len(each) == 3 else NAMES[each[1]], DENY) for each in taken]
        if not acls:
            yield
            return
        await self._change(admin, acls)
        try:
            yield
        finally:
            gone = [
                delete_acls.DeleteAclsFilter(
                    resource_type_filter=acl.resource_type,
                    resource_name_filter=acl.resource_name,
                    pattern_type_filter=LITERAL,
                    principal_filter=acl.principal,
                    host_filter="*",
                    operation=acl.operation,
                    permission_type=DENY,
                )
                for acl in acls
            ]
            await admin.ask("DeleteAcls", delete_acls.Request(filters=gone))
            await self._until(acls, there=False)

    @contextlib.asynccontextmanager
    async def _member(self, admin: Peer, is_wanted: bool) -> AsyncIterator[None]:
        """A member of a consumer group, with partitions of both topics."""
        if not is_wanted:
            yield
            return
        await self._found(admin, 0, WITH_MEMBER)
        beat = consumer_group_heartbeat.Request(
            group_id=WITH_MEMBER,
            member_id="a-member",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t", OTHER],
            topic_partitions=[],
        )
        has: list[Any] = []
        while len(has) < 2:
            heard = await self._insist(admin, "ConsumerGroupHeartbeat", beat)
            if heard.assignment is not None:
                has = heard.assignment.topic_partitions
            beat = consumer_group_heartbeat.Request(
                group_id=WITH_MEMBER, member_id="a-member", member_epoch=heard.member_epoch, topic_partitions=has
            )
        try:
            yield
        finally:
            beat.member_epoch = -1
            await self._insist(admin, "ConsumerGroupHeartbeat", beat)
            await self._insist(admin, "DeleteGroups", delete_groups.Request(groups_names=[WITH_MEMBER]))

    async def _change(self, admin: Peer, acls: list[create_acls.AclCreation]) -> None:
        made = await admin.ask("CreateAcls", create_acls.Request(creations=acls))
        assert not any(row.error_code for row in made.results), made
        await self._until(acls, there=True)

    async def _until(self, acls: list[create_acls.AclCreation], *, there: bool) -> None:
        """Wait until both nodes apply these ACLs, or until they no longer apply them."""
        wanted = {(acl.resource_type, acl.resource_name, acl.operation, acl.permission_type) for acl in acls}
        every = describe_acls.Request(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        for node in self._nodes:
            while True:
                shown = await node.ask("DescribeAcls", every)
                known = {
                    (row.resource_type, row.resource_name, acl.operation, acl.permission_type)
                    for row in shown.resources
                    for acl in row.acls
                }
                if wanted <= known if there else not wanted & known:
                    break
                await asyncio.sleep(0.01)

    async def _prepare(self, admin: Peer) -> State:
        """Create two topics, a group with commits in both, and a transactional id."""
        topics = [
            create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("t", OTHER)
        ]
        await admin.ask("CreateTopics", create_topics.Request(topics=topics, timeout_ms=10_000))
        asked = metadata.Request(topics=[metadata.MetadataRequestTopic(name=name) for name in ("t", OTHER)])
        while True:
            known = await admin.ask("Metadata", asked, version=12)
            if all(topic.partitions and not topic.partitions[0].error_code for topic in known.topics):
                break
            await asyncio.sleep(0.01)
        ids = {topic.name: topic.topic_id for topic in known.topics}
        for key_type, key in ((0, "g"), (1, "x")):
            await self._found(admin, key_type, key)
        state = State(ids, (-1, -1))
        await self._insist(admin, "OffsetCommit", _commit(state))
        begun = init_producer_id.Request(transactional_id="x", transaction_timeout_ms=60_000)
        producer = await self._insist(admin, "InitProducerId", begun)
        return State(ids, (producer.producer_id, producer.producer_epoch))

    async def _create_token(self) -> None:
        """Create a delegation token, and wait until its owner can describe it."""
        login = Login("PLAIN", OWNER, PASSWORD)
        carl = await Dialer(self._network, login).meet("127.0.0.1", self._ports.named, client_id=OWNER)
        try:
            created = await carl.ask("CreateDelegationToken", create_delegation_token.Request(max_lifetime_ms=-1))
            assert created.error_code == 0, created
            while not (await carl.ask("DescribeDelegationToken", OF_OWNER)).tokens:
                await asyncio.sleep(0.01)
        finally:
            carl.close()

    async def _found(self, admin: Peer, key_type: int, key: str) -> None:
        asked = find_coordinator.Request(key_type=key_type, coordinator_keys=[key])
        while (await admin.ask("FindCoordinator", asked)).coordinators[0].error_code:
            await asyncio.sleep(0.05)

    async def _insist(self, admin: Peer, api: str, request: Any, version: int | None = None) -> Any:
        while True:
            answer = await admin.ask(api, request, version=version)
            if not any(each.get("error_code") for each in _flat(told(answer))):
                return answer
            await asyncio.sleep(0.05)


def _acl(operation: Operation, kind: AclResource, name: str, permission: int) -> create_acls.AclCreation:
    return create_acls.AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=LITERAL,
        principal=f"User:{USER}",
        host="*",
        operation=operation,
        permission_type=permission,
    )


def _flat(found: Any) -> list[dict[str, Any]]:
    if isinstance(found, list):
        return [each for one in found for each in _flat(one)]
    if not isinstance(found, dict):
        return []
    return [found, *(each for value in found.values() for each in _flat(value))]
