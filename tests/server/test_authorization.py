"""Every API asks the authorizer. What each tells a user who lacks one operation: compat_tests/test_authorization.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.raft.log.identity import METADATA_TOPIC_ID
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.security.principal import Principal
from kpybroker.server.node import Node
from kpybroker.serving.authorization import ASK_NOBODY, ASK_THEMSELVES
from kpybroker.serving.authorization_rules import RULES
from kpybroker.wire.api import API, by_name
from kpybroker.wire.rpc import fetch
from oracle.authorization import CASES, Case, State
from tests.asking import make
from tests.conftest import WithBroker
from tests.handlers.strangers import inner

REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
LEAVE_OUT = {"ListGroups", "ListTransactions"}
"""Without any right, their lists are empty."""
OF_TOKENS = {"CreateDelegationToken", "DescribeDelegationToken"}
"""Refused without a login, before the authorizer is asked (tests/handlers/test_create_delegation_token.py).
"""
EVERYBODYS = {*ASK_NOBODY, "DescribeCluster", *OF_TOKENS}
FOR_NODES = {api.name for api in API if "broker" not in api.listens.value}
"""APIs of the controllers' listeners, which the recorded cases do not reach."""


class Closed:
    """An authorizer that allows nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[Operation, AclResource, str]] = []

    def allows(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource, name: str
    ) -> bool:
        self.asked.append((operation, resource, name))
        return False

    def allows_any(
        self, principal: Principal, host: str, api_key: int, operation: Operation, resource: AclResource
    ) -> bool:
        self.asked.append((operation, resource, "*"))
        return False

    def operations(
        self, principal: Principal, host: str, asked: Iterable[Operation], resource: AclResource, name: str
    ) -> int:
        self.asked += [(operation, resource, name) for operation in asked]
        return 0


def codes_in(message: Any) -> set[int]:
    """All error codes in a response, at any depth."""
    if isinstance(message, list):
        return set[int]().union(*map(codes_in, message))
    members = [(name, getattr(message, name)) for name in getattr(type(message), "__slots__", ())]
    own = {value for name, value in members if name in ("error_code", "partition_error_code")}
    return own.union(*(codes_in(value) for _, value in members if isinstance(value, list)))


def test_every_api_has_a_rule_and_a_case() -> None:
    names = {api.name for api in API}
    assert {*RULES, *ASK_THEMSELVES, *ASK_NOBODY} >= names
    assert names - FOR_NODES - ASK_NOBODY <= {case.api for case in CASES}
    assert not RULES.keys() & (ASK_THEMSELVES | ASK_NOBODY)


@pytest.mark.parametrize("case", [case for case in CASES if case.api not in EVERYBODYS], ids=lambda case: case.title)
def test_without_any_right_nothing_is_told(with_broker: WithBroker, case: Case) -> None:
    """The response has refusals only, or leaves everything out; and nothing has changed."""

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
def test_without_any_right_no_controller_answers(with_broker: WithBroker, name: str) -> None:
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


def test_the_nodes_own_requests_need_no_right(with_broker: WithBroker) -> None:
    """A broker is its own controller here: it must go on heartbeating, and create internal topics for its clients."""

    async def scenario(_: Peer, node: Node) -> None:
        node.broker.metadata.authorizer = Closed()
        await node.broker.topic_creation.internal("__consumer_offsets")
        assert "__consumer_offsets" in node.broker.metadata.image.topics

    with_broker(scenario)
