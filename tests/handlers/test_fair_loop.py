"""Tests that requests with many entries do not block the event loop, and have a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kpybroker.call import Call
from kpybroker.client.peer import Peer
from kpybroker.errors import MalformedFrame
from kpybroker.handlers import handler_of
from kpybroker.server.node import Node
from kpybroker.serving.fair_loop import ENTRIES_A_TURN, ENTRIES_MAX
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import (
    consumer_group_describe,
    delete_groups,
    describe_configs,
    describe_groups,
    describe_producers,
    describe_transactions,
    find_coordinator,
    list_offsets,
    offset_fetch,
    offset_for_leader_epoch,
    txn_offset_commit,
)
from tests.asking import turns_while
from tests.conftest import WithBroker

pytestmark = pytest.mark.slow

NOBODYS_KEY_TYPE = 9
BROKER = 4
ASK: dict[str, Callable[[range], Any]] = {
    "ConsumerGroupDescribe": lambda n: consumer_group_describe.Request(group_ids=[str(i) for i in n]),
    "DeleteGroups": lambda n: delete_groups.Request(groups_names=[str(i) for i in n]),
    "DescribeConfigs": lambda n: describe_configs.Request(
        resources=[describe_configs.DescribeConfigsResource(resource_type=2, resource_name=str(i)) for i in n]
    ),
    "DescribeGroups": lambda n: describe_groups.Request(groups=[str(i) for i in n]),
    "DescribeProducers": lambda n: describe_producers.Request(
        topics=[describe_producers.TopicRequest(name="t", partition_indexes=list(n))]
    ),
    "DescribeTransactions": lambda n: describe_transactions.Request(transactional_ids=[str(i) for i in n]),
    "FindCoordinator": lambda n: find_coordinator.Request(
        key_type=NOBODYS_KEY_TYPE, coordinator_keys=[str(i) for i in n]
    ),
    "ListOffsets": lambda n: list_offsets.Request(
        topics=[
            list_offsets.ListOffsetsTopic(
                name="t", partitions=[list_offsets.ListOffsetsPartition(partition_index=i) for i in n]
            )
        ]
    ),
    "OffsetFetch": lambda n: offset_fetch.Request(
        groups=[offset_fetch.OffsetFetchRequestGroup(group_id=str(i)) for i in n]
    ),
    "OffsetForLeaderEpoch": lambda n: offset_for_leader_epoch.Request(
        topics=[
            offset_for_leader_epoch.OffsetForLeaderTopic(
                topic="t", partitions=[offset_for_leader_epoch.OffsetForLeaderPartition(partition=i) for i in n]
            )
        ]
    ),
    "TxnOffsetCommit": lambda n: txn_offset_commit.Request(
        topics=[
            txn_offset_commit.TxnOffsetCommitRequestTopic(
                name="t",
                partitions=[txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=i) for i in n],
            )
        ]
    ),
}


@pytest.mark.parametrize("name", ASK)
def test_many_entries_in_a_request_do_not_delay_others(with_broker: WithBroker, name: str) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        api = api_table.by_name[name]
        call = Call(api.key, api.max, None, "127.0.0.1", 0)
        handle = handler_of(api).handle
        asked = ASK[name](range(10 * ENTRIES_A_TURN))
        assert await turns_while(handle(node.broker, call, asked)) >= 10

    with_broker(scenario)


AMPLE: dict[str, Callable[[range], Any]] = {
    "ConsumerGroupDescribe": lambda n: consumer_group_describe.Request(group_ids=["g" for _ in n]),
    "DescribeConfigs": lambda n: describe_configs.Request(
        resources=[describe_configs.DescribeConfigsResource(resource_type=BROKER, resource_name="1") for _ in n],
        include_documentation=True,
    ),
    "DescribeGroups": lambda n: describe_groups.Request(groups=["g" for _ in n]),
    "DescribeProducers": lambda n: describe_producers.Request(
        topics=[describe_producers.TopicRequest(name="t", partition_indexes=[0, 0]) for _ in n]
    ),
    "DescribeTransactions": lambda n: describe_transactions.Request(transactional_ids=["x" for _ in n]),
    "OffsetFetch": lambda n: offset_fetch.Request(
        groups=[
            offset_fetch.OffsetFetchRequestGroup(
                group_id="g",
                topics=[offset_fetch.OffsetFetchRequestTopics(name="t", partition_indexes=[0, 0]) for _ in n],
            )
            for _ in n
        ]
    ),
}
"""Requests in which the response to a name is much larger than the name."""


@pytest.mark.parametrize("name", AMPLE)
def test_a_name_that_is_repeated_is_answered_once(with_broker: WithBroker, name: str) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        api = api_table.by_name[name]
        version = 9 if name == "OffsetFetch" else api.max  # the last version that names topics
        answered = []
        for times in 1, 50:
            call = Call(api.key, version, None, "127.0.0.1", 0)
            answer = await handler_of(api).handle(node.broker, call, AMPLE[name](range(times)))
            answered.append(str(answer).count("error_code="))
        assert answered[0] == answered[1] > 0

    with_broker(scenario)


@pytest.mark.parametrize("name", ["FindCoordinator", "DescribeProducers"])
def test_a_request_with_too_many_entries_is_refused(with_broker: WithBroker, name: str) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        api = api_table.by_name[name]
        call = Call(api.key, api.max, None, "127.0.0.1", 0)
        with pytest.raises(MalformedFrame, match="entries"):
            await handler_of(api).handle(node.broker, call, ASK[name](range(ENTRIES_MAX + 1)))

    with_broker(scenario)
