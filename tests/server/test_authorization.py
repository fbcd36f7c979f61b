"""Every API calls the authorizer.

compat_tests/test_authorization.py tests the responses of each API to a user who lacks one operation.
test_authorization_matrix.py tests that this covers all APIs.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest

from kpybroker.call import BROKER, Call
from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.handlers import answer, refused
from kpybroker.raft.log.identity import METADATA_TOPIC_ID
from kpybroker.security.acls import Acl, PatternType, Permission
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.security.principal import ANONYMOUS, Principal
from kpybroker.security.standard_authorizer import StandardAuthorizer
from kpybroker.server.node import Node
from kpybroker.serving.authorization import ASK_NOBODY, ASK_THEMSELVES, GRANTED_MAX, allows_topic
from kpybroker.serving.authorization_rules import REFUSED_A_TURN, RULES
from kpybroker.serving.fair_loop import ENTRIES_A_TURN
from kpybroker.serving.fetch.replica import NAMED_LIMIT
from kpybroker.wire.api import API, by_name
from kpybroker.wire.codec.codec import build
from kpybroker.wire.rpc import (
    add_partitions_to_txn,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    create_topics,
    elect_leaders,
    fetch,
    incremental_alter_configs,
    list_offsets,
    offset_commit,
    offset_fetch,
)
from oracle.authorization import CASES, Case, State
from tests.asking import fetched, make, produced
from tests.conftest import WithBroker
from tests.handlers.grouping import coordinator
from tests.handlers.strangers import inner
from tests.server.authorizers import AllBut, Closed

REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
LEAVE_OUT = {"ListGroups", "ListTransactions"}
"""APIs that return empty lists to a caller without any permissions."""
OF_TOKENS = {"CreateDelegationToken", "DescribeDelegationToken"}
"""APIs that refuse callers without a login before they call the authorizer, as is tested in
tests/handlers/test_create_delegation_token.py.
"""
EVERYBODYS = {*ASK_NOBODY, "DescribeCluster", *OF_TOKENS}
FOR_NODES = {api.name for api in API if "broker" not in api.listens.value}
"""APIs that only controller listeners serve."""


def codes_in(message: Any) -> set[int]:
    """All error codes in a response, at any depth."""
    if isinstance(message, list):
        return set[int]().union(*map(codes_in, message))
    members = [(name, getattr(message, name)) for name in getattr(type(message), "__slots__", ())]
    own = {value for name, value in members if name in ("error_code", "partition_error_code")}
    return own.union(*(codes_in(value) for _, value in members if isinstance(value, list)))


def test_every_api_has_a_rule() -> None:
    names = {api.name for api in API}
    assert {*RULES, *ASK_THEMSELVES, *ASK_NOBODY} >= names
    assert not RULES.keys() & (ASK_THEMSELVES | ASK_NOBODY)


@pytest.mark.parametrize("case", [case for case in CASES if case.api not in EVERYBODYS], ids=lambda case: case.title)
def test_without_any_right_nothing_is_revealed(with_broker: WithBroker, case: Case) -> None:
    """The response contains only refusals or empty lists, and the request has changed nothing."""

    async def scenario(peer: Peer, node: Node) -> None:
        state = State({name: await make(peer, name) for name in ("t", "u")}, (1, 0))
        node.broker.metadata.authorizer = Closed()
        before = node.broker.metadata.image.topics
        told = await peer.ask(case.api, case.make(state), version=case.version)
        codes = codes_in(told) - {ErrorCode.NONE}
        if case.api in LEAVE_OUT or case.what == "of all topics":
            assert codes <= REFUSALS, told
            lists = [getattr(told, name) for name in ("topics", "groups", "transaction_states") if hasattr(told, name)]
            assert codes or lists == [[]], told
        else:
            unknown = {ErrorCode.UNKNOWN_TOPIC_ID} if case.what == "by id" else set[int]()
            assert codes & REFUSALS, told
            assert codes <= REFUSALS | unknown | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, told
        assert node.broker.metadata.image.topics is before, "nothing has changed"

    with_broker(scenario)


@pytest.mark.parametrize("name", sorted(FOR_NODES | {"Fetch", "DescribeCluster"}))
def test_without_any_right_a_controller_refuses_everything(with_broker: WithBroker, name: str) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as at_controller:
            node.broker.metadata.authorizer = Closed()
            offset = node.broker.metadata.image.offset
            request = by_name[name].request()
            if name == "Fetch":
                rows = [fetch.FetchPartition()]
                topics = [fetch.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=rows)]
                request = fetch.Request(replica_state=fetch.ReplicaState(replica_id=7), topics=topics)
            told = await at_controller.ask(name, request)
            assert told.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert node.broker.metadata.image.offset == offset, "nothing has changed"

    with_broker(scenario)


def test_the_nodes_own_requests_need_no_authorization(with_broker: WithBroker) -> None:
    """This broker is also the controller. It must continue to send heartbeats, and create internal topics for
    clients."""

    async def scenario(_: Peer, node: Node) -> None:
        node.broker.metadata.authorizer = Closed()
        await node.broker.topic_creation.internal("__consumer_offsets")
        assert "__consumer_offsets" in node.broker.metadata.image.topics

    with_broker(scenario)


ROWS = 20_000
NAMES = [f"t{each}" for each in range(ROWS)]
ASKED = incremental_alter_configs.Request(
    resources=[
        incremental_alter_configs.AlterConfigsResource(resource_type=2, resource_name=each, configs=[])
        for each in NAMES
    ]
)
FETCHED = offset_fetch.Request(
    groups=[
        offset_fetch.OffsetFetchRequestGroup(
            group_id="g",
            topics=[offset_fetch.OffsetFetchRequestTopics(name=each, partition_indexes=[0]) for each in NAMES],
        )
    ]
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "version", "but"),
    [(ASKED, 1, None), (FETCHED, 9, AclResource.GROUP)],
    ids=["IncrementalAlterConfigs", "OffsetFetch"],
)
def test_other_requests_are_served_while_many_rows_are_refused(
    with_broker: WithBroker, request_: Any, version: int, but: AclResource | None
) -> None:
    """Others are served while the rows are checked, and while the refused rows are added to the response."""
    api = next(api for api in API if api.request is type(request_))

    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        node.broker.metadata.authorizer = authorizer = Closed(but)
        loop = asyncio.get_running_loop()
        asked_by_turn = [0]

        def another_turn() -> None:
            asked_by_turn.append(len(authorizer.asked))
            handles.append(loop.call_soon(another_turn))

        handles = [loop.call_soon(another_turn)]
        call = Call(api.key, version, "c", "127.0.0.1", 1, "PLAINTEXT", BROKER, principal=ANONYMOUS)
        told = await answer(node.broker, api, call, request_)
        handles[-1].cancel()
        assert ErrorCode.TOPIC_AUTHORIZATION_FAILED in codes_in(told)
        assert len(authorizer.asked) >= ROWS
        assert max(after - before for before, after in pairwise(asked_by_turn)) <= ENTRIES_A_TURN
        after_the_last_question = asked_by_turn.count(asked_by_turn[-1])
        assert after_the_last_question >= ROWS // REFUSED_A_TURN

    with_broker(scenario)


MANY_INDEXES = list(range(ROWS))
ELECTED = [elect_leaders.TopicPartitions(topic=each, partitions=[0]) for each in NAMES]
MOVED = [alter_partition_reassignments.ReassignablePartition(partition_index=each) for each in MANY_INDEXES]
COMMITTED = [offset_commit.OffsetCommitRequestPartition(partition_index=each) for each in MANY_INDEXES]
LISTED = [list_offsets.ListOffsetsPartition(partition_index=each) for each in MANY_INDEXES]
MOVED_DIRS = [alter_replica_log_dirs.AlterReplicaLogDirTopic(name=each, partitions=[0]) for each in NAMES]
ADDED = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=each, partitions=[0, 1]) for each in NAMES]
CLUSTER_, GROUP_, TOPIC_ = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "version", "but", "code"),
    [
        (elect_leaders.Request(topic_partitions=ELECTED), 2, None, CLUSTER_),
        (
            elect_leaders.Request(
                topic_partitions=[
                    elect_leaders.TopicPartitions(topic="few", partitions=[1, 2]),
                    elect_leaders.TopicPartitions(topic="many", partitions=MANY_INDEXES),
                    elect_leaders.TopicPartitions(topic="few again", partitions=[3]),
                ]
            ),
            2,
            None,
            CLUSTER_,
        ),
        (
            alter_partition_reassignments.Request(
                topics=[alter_partition_reassignments.ReassignableTopic(name="t", partitions=MOVED)]
            ),
            1,
            None,
            CLUSTER_,
        ),
        (
            alter_replica_log_dirs.Request(
                dirs=[alter_replica_log_dirs.AlterReplicaLogDir(path="/d", topics=MOVED_DIRS)]
            ),
            2,
            None,
            CLUSTER_,
        ),
        (
            offset_commit.Request(
                group_id="g", topics=[offset_commit.OffsetCommitRequestTopic(name="t", partitions=COMMITTED)]
            ),
            9,
            None,
            GROUP_,
        ),
        (
            offset_commit.Request(
                group_id="g", topics=[offset_commit.OffsetCommitRequestTopic(name="t", partitions=COMMITTED)]
            ),
            9,
            AclResource.GROUP,
            TOPIC_,
        ),
        (
            list_offsets.Request(topics=[list_offsets.ListOffsetsTopic(name="t", partitions=LISTED)]),
            11,
            None,
            TOPIC_,
        ),
        (
            add_partitions_to_txn.Request(v3_and_below_transactional_id="x", v3_and_below_topics=ADDED),
            3,
            AclResource.TRANSACTIONAL_ID,
            TOPIC_,
        ),
    ],
    ids=[
        *("ElectLeaders", "ElectLeaders of a large topic", "AlterPartitionReassignments", "AlterReplicaLogDirs"),
        *("OffsetCommit of a group", "OffsetCommit of a topic", "ListOffsets", "AddPartitionsToTxn"),
    ],
)
def test_many_refusals_are_made_in_turns(
    with_broker: WithBroker, request_: Any, version: int, but: AclResource | None, code: ErrorCode
) -> None:
    """Covers refusals of many rows, and of one row with many elements. The response is the same as a response
    that is built in one turn."""
    api = next(api for api in API if api.request is type(request_))

    async def scenario(_: Peer, node: Node) -> None:
        node.broker.metadata.authorizer = Closed(but)
        call = Call(api.key, version, "c", "127.0.0.1", 1, "PLAINTEXT", BROKER, principal=ANONYMOUS)
        before = node.broker.long_work.turns
        told = await answer(node.broker, api, call, request_)
        assert node.broker.long_work.turns - before >= ROWS // REFUSED_A_TURN - 1
        assert bytes(build(told, version)) == bytes(build(refused(api, request_, KafkaError(code)), version))

    with_broker(scenario)


def test_what_is_told_of_settings_is_decided_in_turns(with_broker: WithBroker) -> None:
    topics = [create_topics.CreatableTopic(name=each, num_partitions=1, replication_factor=1) for each in NAMES[:2000]]
    wanted = create_topics.Request(topics=topics, validate_only=True, timeout_ms=30_000)
    api = by_name["CreateTopics"]

    async def scenario(_: Peer, node: Node) -> None:
        turns = []
        for authorizer in (None, AllBut(Operation.DESCRIBE_CONFIGS)):
            node.broker.metadata.authorizer = authorizer
            call = Call(api.key, api.max, "c", "127.0.0.1", 1, "PLAINTEXT", BROKER, principal=ANONYMOUS)
            before = node.broker.long_work.turns
            told = await answer(node.broker, api, call, wanted)
            turns.append(node.broker.long_work.turns - before)
        assert {row.topic_config_error_code for row in told.topics} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        assert turns[1] - turns[0] >= len(topics) // ENTRIES_A_TURN - 1

    with_broker(scenario)


def test_a_fetch_of_a_follower_is_short_before_anybody_is_asked(with_broker: WithBroker) -> None:
    """This also applies to a client that is not a follower. If its Fetch is small enough, its partitions are refused at
    once."""

    async def scenario(peer: Peer, node: Node) -> None:
        node.broker.metadata.authorizer = Closed()
        for count in (NAMED_LIMIT, NAMED_LIMIT + 1):
            rows = [fetch.FetchPartition(partition=each) for each in range(count)]
            asked = peer.ask(
                "Fetch",
                fetch.Request(
                    replica_state=fetch.ReplicaState(replica_id=7),
                    topics=[fetch.FetchTopic(topic_id=bytes(15) + b"1", partitions=rows)],
                ),
            )
            if count <= NAMED_LIMIT:
                assert codes_in(await asked) == {0, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            else:
                with pytest.raises(ConnectionError):
                    await asked

    with_broker(scenario)


def test_a_change_of_acls_holds_for_the_next_request_of_a_connection(
    with_broker: WithBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A grant is cached between requests only until the ACLs or the log level change."""
    user = Principal("User", "ANONYMOUS")
    only = {
        operation: {
            bytes(16): Acl(AclResource.TOPIC, "t", PatternType.LITERAL, str(user), "*", operation, Permission.ALLOW)
        }
        for operation in (Operation.WRITE, Operation.READ)
    }

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        authorizer = StandardAuthorizer([], allow_everyone=True, now=lambda: 0.0)
        node.broker.metadata.authorizer = node.broker.metadata.standard_authorizer = authorizer

        async def codes() -> tuple[int, int]:
            written = await peer.ask("Produce", produced("t", b"x"), version=9)
            read = await peer.ask("Fetch", fetched("t", 0), version=12)
            return (
                written.responses[0].partition_responses[0].error_code,
                read.responses[0].partitions[0].error_code,
            )

        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for acls, expected in (
            ({}, (0, 0)),
            ({}, (0, 0)),
            (only[Operation.WRITE], (0, refused)),
            (only[Operation.READ], (refused, 0)),
            (dict[bytes, Acl](), (0, 0)),
        ):
            authorizer.follow(acls)
            assert await codes() == expected
        caplog.set_level(logging.DEBUG, "kpybroker.authorizer")
        authorizer.look()
        for times in (1, 2):
            assert await codes() == (0, 0)
            assert sum("is Allowed operation = WRITE" in each.getMessage() for each in caplog.records) == times

    with_broker(scenario)


def test_there_is_a_limit_to_remembered_grants(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        authorizer = StandardAuthorizer([], allow_everyone=True, now=lambda: 0.0)
        authorizer.follow({})
        node.broker.metadata.authorizer = authorizer
        call = Call(0, 9, "c", "127.0.0.1", 1, "PLAINTEXT", BROKER, principal=ANONYMOUS)
        for each in range(3 * GRANTED_MAX):
            assert allows_topic(node.broker, call, Operation.WRITE, f"t{each}")
            assert len(call.granted) <= GRANTED_MAX

    with_broker(scenario)
