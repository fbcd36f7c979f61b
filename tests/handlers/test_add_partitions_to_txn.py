"""Tests AddPartitionsToTxn over a socket. The golden vectors show that the error codes are the same as Kafka's."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.handlers.add_partitions_to_txn import _of_brokers
from kpybroker.server.node import Node
from kpybroker.serving.fair_loop import ENTRIES_A_TURN
from kpybroker.wire.rpc import add_partitions_to_txn as rpc
from tests.asking import make, turns_while
from tests.conftest import WithBroker
from tests.handlers.beginning import add, begin, coordinator, described


def test_clients_add_partitions_in_every_version(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", 4)
        await coordinator(peer)
        who = await begin(peer)
        for version in range(4):
            assert await add(peer, who, version, version=version) == [0]
        found = await described(peer)
        assert found.transaction_state == "Ongoing"
        assert [(each.topic, each.partitions) for each in found.topics] == [("t", [0, 1, 2, 3])]

    with_broker(scenario)


def test_an_unknown_partition_fails_them_all(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await coordinator(peer)
        who = await begin(peer)
        codes = await add(peer, who, 0, 7)
        assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert (await described(peer)).transaction_state == "Empty"

    with_broker(scenario)


def test_clients_cannot_add_partitions_of_coordinators(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await coordinator(peer)
        who = await begin(peer)
        for internal in ("__transaction_state", "__consumer_offsets"):
            topics = [rpc.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in ("t", internal)]
            asked = rpc.Request(
                v3_and_below_transactional_id="t",
                v3_and_below_producer_id=who[0],
                v3_and_below_producer_epoch=who[1],
                v3_and_below_topics=topics,
            )
            told = await peer.ask("AddPartitionsToTxn", asked, version=3)
            codes = [
                each.partition_error_code
                for topic in told.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ]
            assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        assert (await described(peer)).transaction_state == "Empty"

    with_broker(scenario)


def test_many_transactions_in_a_request_do_not_delay_others(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await coordinator(peer)
        topics = [rpc.AddPartitionsToTxnTopic(name="t", partitions=[0])]
        asked = [
            rpc.AddPartitionsToTxnTransaction(transactional_id=str(n), verify_only=True, topics=topics)
            for n in range(10 * ENTRIES_A_TURN)
        ]
        assert await turns_while(_of_brokers(node.broker, asked)) >= 10

    with_broker(scenario)


def test_leaders_ask_for_many_transactions_at_once(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", 2)
        await coordinator(peer)
        who = {name: await begin(peer, name) for name in ("a", "b", "c")}
        for version in (4, 5):
            asked = [
                rpc.AddPartitionsToTxnTransaction(
                    transactional_id=name,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    verify_only=name == "c",
                    topics=[rpc.AddPartitionsToTxnTopic(name="t", partitions=[version - 4])],
                )
                for name, (producer_id, epoch) in who.items()
            ]
            told = await peer.ask("AddPartitionsToTxn", rpc.Request(transactions=asked), version=version)
            found = {
                each.transactional_id: each.topic_results[0].results_by_partition[0].partition_error_code
                for each in told.results_by_transaction
            }
            assert found == {"a": 0, "b": 0, "c": ErrorCode.TRANSACTION_ABORTABLE}
        assert (await peer.ask("AddPartitionsToTxn", rpc.Request(), version=5)).results_by_transaction == []

    with_broker(scenario)
