"""Client quotas on a whole node: a client above its quota has a response at once, and is then muted (KIP-219)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.metadata.quotas import Entity
from kpybroker.security.authorizer import Operation
from kpybroker.server.node import Node
from kpybroker.wire.rpc import (
    alter_client_quotas,
    create_partitions,
    create_topics,
    delete_topics,
    fetch,
    incremental_alter_configs,
    metadata,
    produce,
)
from tests.asking import batch_of, make, produced
from tests.handlers.beginning import add, begin, coordinator
from tests.handlers.test_alter_client_quotas import entry
from tests.server.authorizers import AllBut
from tests.server.virtual import Dial, run_virtually

EVERYBODY: Entity = (("client-id", None),)
SLACK_S = 0.1
"""The time allowed for the network and other requests."""
KB = 1000


async def limit(peer: Peer, key: str, value: float | None, entity: Entity = EVERYBODY) -> None:
    told = await peer.ask("AlterClientQuotas", alter_client_quotas.Request(entries=[entry(entity, key, value)]))
    assert told.entries[0].error_code == 0, told.entries[0].error_message


async def lasted(work: Awaitable[Any]) -> tuple[Any, float]:
    """The result of `work`, and its duration in seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    return await work, loop.time() - began


def much(size: int, topic: str = "t", acks: int = 1) -> Any:
    return produced(topic, b"x" * size, acks=acks)


async def next_answer_s(peer: Peer) -> float:
    """The time until another request has a response, in seconds."""
    return (await lasted(peer.ask("Metadata", metadata.Request(topics=[]))))[1]


@pytest.mark.parametrize("version", [8, 9, 12])
def test_a_throttled_producer_is_answered_at_once_and_read_again_later(version: int) -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin, slow = await dial("admin"), await dial("slow")
        await make(admin, "t")
        await limit(admin, "producer_byte_rate", 1000, (("client-id", "slow"),))
        told, took_s = await lasted(slow.ask("Produce", much(10), version=version))
        assert (told.throttle_time_ms, took_s < SLACK_S) == (0, True)
        told, took_s = await lasted(slow.ask("Produce", much(20 * KB), version=version))
        assert told.responses[0].partition_responses[0].base_offset == 1
        wait_s = told.throttle_time_ms / 1000
        assert 10 < wait_s < 11, "twice as much as ten seconds allow"
        assert took_s < SLACK_S
        again = await dial("slow")
        assert await next_answer_s(again) < SLACK_S, "a connection waits, not a client"
        assert await next_answer_s(admin) < SLACK_S
        assert wait_s - SLACK_S < await next_answer_s(slow) < wait_s + SLACK_S
        assert node.server.metrics.requests_throttled == 1
        assert not node.server.throttling.pauses.open

    run_virtually(scenario)


def test_requests_sent_in_the_meantime_wait() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        slow = await dial("slow")
        await make(slow, "t")
        await limit(slow, "producer_byte_rate", 1000)
        answers = [asyncio.ensure_future(slow.ask("Produce", much(15 * KB), version=9)) for _ in range(3)]
        first = await answers[0]
        log = node.broker.replication.hosting.leads("t", 0).log
        assert (first.throttle_time_ms > 0, log.end) == (True, 1)
        second, took_s = await lasted(answers[1])
        assert took_s > first.throttle_time_ms / 1000 - SLACK_S
        assert log.end == 2
        await answers[2]
        _, took_s = await lasted(slow.ask("Metadata", metadata.Request(topics=[])))
        assert second.throttle_time_ms > 0
        assert took_s > SLACK_S

    run_virtually(scenario)


def test_a_producer_with_acks_0_is_throttled_too() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        slow = await dial("slow")
        await make(slow, "t")
        await limit(slow, "producer_byte_rate", 1000)
        unanswered = asyncio.ensure_future(slow.ask("Produce", much(20 * KB, acks=0), version=9))
        while not node.server.throttling.pauses.open:
            await asyncio.sleep(0.001)
        other = await dial("admin")
        assert await next_answer_s(other) < SLACK_S
        _, took_s = await lasted(_until_free(node))
        assert 9 < took_s < 11
        unanswered.cancel()

    run_virtually(scenario)


async def _until_free(node: Node) -> None:
    while node.server.throttling.pauses.open:
        await asyncio.sleep(0.01)


def test_a_transaction_is_charged_for_its_records() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        slow = await dial("slow")
        await make(slow, "t")
        await coordinator(slow)
        who = await begin(slow)
        assert await add(slow, who, 0) == [0]
        await limit(slow, "producer_byte_rate", 1000)
        facts = {"producer_id": who[0], "producer_epoch": who[1], "base_sequence": 0, "transactional": True}
        request = produced("t", records=batch_of(b"x" * 20 * KB, **facts))
        request.transactional_id = "x"
        told = await slow.ask("Produce", request, version=9)
        assert told.responses[0].partition_responses[0].error_code == 0
        assert told.throttle_time_ms > 0
        assert await next_answer_s(slow) > told.throttle_time_ms / 1000 - SLACK_S

    run_virtually(scenario)


def wanted(offset: int, session: tuple[int, int] = (0, -1), wait_ms: int = 0, **facts: Any) -> fetch.Request:
    partition = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return fetch.Request(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_id=session[0],
        session_epoch=session[1],
        topics=[fetch.FetchTopic(topic="t", partitions=[partition])],
        **facts,
    )


def test_a_throttled_consumer_gets_an_empty_response_and_its_records_later() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin, slow = await dial("admin"), await dial("slow")
        await make(admin, "t")
        for _ in range(4):
            await admin.ask("Produce", much(6 * KB), version=9)
        await limit(admin, "consumer_byte_rate", 1000, (("client-id", "slow"),))
        first, took_s = await lasted(slow.ask("Fetch", wanted(0), version=12))
        assert first.throttle_time_ms == 0
        got = len(first.responses[0].partitions[0].records)
        assert 6 * KB < got < 10 * KB, "it reads no more than the quota allows"
        none, took_s = await lasted(slow.ask("Fetch", wanted(1), version=12))
        assert (none.responses, took_s < SLACK_S) == ([], True)
        wait_s = none.throttle_time_ms / 1000
        assert wait_s > 1
        later, took_s = await lasted(slow.ask("Fetch", wanted(1), version=12))
        assert wait_s - SLACK_S < took_s < wait_s + SLACK_S
        while later.throttle_time_ms:
            assert not later.responses
            later, more_s = await lasted(slow.ask("Fetch", wanted(1), version=12))
            took_s += more_s
        assert len(later.responses[0].partitions[0].records) == got
        assert took_s > 2 * got / 1000 - 2 * SLACK_S - 1, "a window may have been forgotten"

    run_virtually(scenario)


def test_a_session_continues_after_a_withheld_response() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin, slow = await dial("admin"), await dial("slow")
        await make(admin, "t")
        for _ in range(3):
            await admin.ask("Produce", much(6 * KB), version=9)
        await limit(admin, "consumer_byte_rate", 1000, (("client-id", "slow"),))
        opened = await slow.ask("Fetch", wanted(0, (0, 0)), version=12)
        session = opened.session_id
        assert session
        assert opened.responses
        none = await slow.ask("Fetch", wanted(1, (session, 1)), version=12)
        assert (none.session_id, none.responses, none.throttle_time_ms > 0) == (session, [], True)
        epoch = 2
        while not (later := await slow.ask("Fetch", _incremental(session, epoch), version=12)).responses:
            assert (later.error_code, later.throttle_time_ms > 0) == (0, True)
            epoch += 1
        assert later.responses[0].partitions[0].records, "the withheld partitions are sent again without a request"
        withheld = await slow.ask("Fetch", wanted(2, (0, 0)), version=12)
        assert (withheld.session_id, withheld.throttle_time_ms > 0) == (0, True)
        assert len(node.broker.replication.sessions) == 1, "a session that the client does not know is closed"

    run_virtually(scenario)


def _incremental(session: int, epoch: int) -> fetch.Request:
    """An incremental Fetch, for the partitions of the session."""
    return fetch.Request(max_bytes=1 << 20, min_bytes=1, session_id=session, session_epoch=epoch, topics=[])


def test_a_fetch_that_waits_for_records_is_charged_when_they_arrive() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin, slow = await dial("admin"), await dial("slow")
        await make(admin, "t")
        await limit(admin, "consumer_byte_rate", 100, (("client-id", "slow"),))
        parked = asyncio.ensure_future(slow.ask("Fetch", wanted(0, wait_ms=60_000), version=12))
        await asyncio.sleep(1)
        await admin.ask("Produce", much(5 * KB), version=9)
        told = await parked
        assert (told.responses, told.throttle_time_ms > 0) == ([], True)
        assert await next_answer_s(slow) > told.throttle_time_ms / 1000 - SLACK_S

    run_virtually(scenario)


def test_time_of_the_broker_is_charged_for_every_request() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin, slow = await dial("admin"), await dial("slow")
        await make(admin, "t")
        await limit(admin, "request_percentage", 1e-9, (("client-id", "slow"),))
        for name, request in (
            ("Metadata", metadata.Request(topics=None)),
            ("Produce", much(1)),
            ("CreateTopics", create_topics.Request(topics=[])),
            ("Fetch", wanted(7)),
            ("DescribeClientQuotas", None),
        ):
            version = {"Produce": 9, "Fetch": 12}.get(name)
            told = await slow.ask(name, request, **({} if version is None else {"version": version}))
            assert told.throttle_time_ms == 1000, f"{name}: a window at most"
            assert 1 - SLACK_S < await next_answer_s(slow) < 1 + SLACK_S
            await asyncio.sleep(1)

    run_virtually(scenario)


@pytest.mark.parametrize("has_right", [True, False])
def test_brokers_are_not_charged_if_they_may_act_as_brokers(has_right: bool) -> None:
    """Any client can send a Fetch with the id of a replica."""

    async def scenario(node: Node, dial: Dial) -> None:
        if not has_right:
            node.broker.metadata.authorizer = AllBut(Operation.CLUSTER_ACTION)
        peer = await dial("broker-2-fetcher-0")
        await make(peer, "t")
        await limit(peer, "request_percentage", 1e-9)
        await _until_free(node)
        for _ in range(2):
            replica = wanted(0, replica_state=fetch.ReplicaState(replica_id=2, replica_epoch=1))
            replica.replica_id = 2
            told = await peer.ask("Fetch", replica, version=12)
            assert (told.throttle_time_ms == 0) == has_right
            assert [each.is_of_a_node for each in node.server.connections()] == [has_right]
            assert bool(node.server.throttling.pauses.open) != has_right

    run_virtually(scenario)


def topics(*counts: int) -> create_topics.Request:
    return create_topics.Request(
        topics=[
            create_topics.CreatableTopic(name=f"made-{count}", num_partitions=count, replication_factor=1)
            for count in counts
        ],
        timeout_ms=5000,
    )


def test_a_client_that_creates_too_many_partitions_is_refused_or_throttled() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        slow = await dial("slow")
        await limit(slow, "controller_mutation_rate", 1.0)
        told = await slow.ask("CreateTopics", topics(21, 2), version=7)
        assert [topic.error_code for topic in told.topics] == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        assert 9000 < told.throttle_time_ms <= 10_000
        assert await next_answer_s(slow) > told.throttle_time_ms / 1000 - SLACK_S
        told = await slow.ask("CreateTopics", topics(5), version=5)
        assert told.topics[0].error_code == 0, "an old client does not know this error"
        assert 4000 < told.throttle_time_ms <= 5000
        grown = create_partitions.CreatePartitionsTopic(name="made-5", count=6, assignments=None)
        more = await slow.ask("CreatePartitions", create_partitions.Request(topics=[grown]), version=3)
        assert more.results[0].error_code == 0, "the five seconds are over"
        gone = [delete_topics.DeleteTopicState(name=name) for name in ("made-21", "made-5")]
        told = await slow.ask("DeleteTopics", delete_topics.Request(topics=gone), version=6)
        codes = [row.error_code for row in told.responses]
        assert codes == [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * 2
        assert "made-21" in node.broker.metadata.image.topics

    run_virtually(scenario)


def test_without_a_quota_requests_are_not_wrapped() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        server = node.server
        free = server.port.dispatch, server.port.encode
        peer = await dial("slow")
        await make(peer, "t")
        await limit(peer, "connection_creation_rate", 1000.0, (("ip", None),))
        assert (server.port.dispatch, server.port.encode) == free
        await limit(peer, "producer_byte_rate", 1000)
        assert (server.port.dispatch, server.port.encode) != free
        told = await peer.ask("Produce", much(90 * KB), version=9)
        assert told.throttle_time_ms > 60_000
        await limit(await dial("admin"), "producer_byte_rate", None)
        assert (server.port.dispatch, server.port.encode) == free
        assert await next_answer_s(peer) < SLACK_S, "no client waits any more"

    run_virtually(scenario)


def test_a_closed_connection_or_removed_quota_leaves_no_throttling_behind() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin, slow = await dial("admin"), await dial("slow")
        await make(admin, "t")
        await limit(admin, "producer_byte_rate", 1, (("client-id", "slow"),))
        await slow.ask("Produce", much(90 * KB), version=9)
        slow.close()
        await asyncio.sleep(SLACK_S)
        assert not node.server.throttling.pauses.open
        waiting = await dial("slow")
        assert (await waiting.ask("Produce", much(90 * KB), version=9)).throttle_time_ms > 60_000
        _, took_s = await lasted(node.server.stop())
        assert took_s < 1, "a stop does not wait for throttled clients"

    run_virtually(scenario)


def test_an_address_that_connects_too_often_is_held_and_closed() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin = await dial("admin")
        await limit(admin, "connection_creation_rate", 2.0, (("ip", "10.0.0.9"),))
        for _ in range(20):
            assert await next_answer_s(await dial("fine")) < SLACK_S
        (refused,), took_s = await lasted(asyncio.gather(dial("too many"), return_exceptions=True))
        assert isinstance(refused, OSError), refused
        assert 0.4 < took_s <= 1 + SLACK_S
        assert node.server.metrics.connections_throttled == 1
        assert await next_answer_s(admin) < SLACK_S
        await asyncio.sleep(11)
        assert await next_answer_s(await dial("fine")) < SLACK_S

    run_virtually(scenario)


def test_the_rate_of_all_connections_is_limited() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin = await dial("admin")
        await dynamic(admin, "max.connection.creation.rate", "5")
        _, took_s = await lasted(asyncio.gather(*(dial("many") for _ in range(50))))
        assert took_s < SLACK_S
        _, took_s = await lasted(asyncio.gather(*(dial("more") for _ in range(10))))
        assert took_s > 2 - SLACK_S, "sixty in all, of which the first fifty are what ten seconds allow"
        gone = [asyncio.ensure_future(dial("gone")) for _ in range(5)]
        await asyncio.sleep(0.01)
        for each in gone:
            each.cancel()
        await dynamic(admin, "max.connection.creation.rate", str(2**31 - 1))
        assert await next_answer_s(admin) < SLACK_S
        await asyncio.sleep(2)
        _, took_s = await lasted(asyncio.gather(*(dial("free") for _ in range(200))))
        assert took_s < SLACK_S

    run_virtually(scenario)


async def dynamic(peer: Peer, name: str, value: str, node_id: str = "") -> None:
    change = incremental_alter_configs.AlterableConfig(name=name, config_operation=0, value=value)
    about = incremental_alter_configs.AlterConfigsResource(resource_type=4, resource_name=node_id, configs=[change])
    told = await peer.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[about]))
    assert told.responses[0].error_code == 0, told.responses[0].error_message


def test_a_request_with_many_elements_is_charged_like_any_other() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin, slow = await dial("admin"), await dial("slow")
        await limit(admin, "producer_byte_rate", 10.0 * KB)
        rows = [produce.PartitionProduceData(index=index, records=batch_of(b"x")) for index in range(2000)]
        topic = produce.TopicProduceData(name="nobody", partition_data=rows)
        asked = produce.Request(acks=1, timeout_ms=5000, topic_data=[topic])
        told = await slow.ask("Produce", asked, version=9)
        assert [len(each.partition_responses) for each in told.responses] == [2000]
        assert told.throttle_time_ms > 0
        assert await next_answer_s(slow) == pytest.approx(told.throttle_time_ms / 1000, abs=SLACK_S)

        await limit(admin, "producer_byte_rate", None)
        await limit(admin, "consumer_byte_rate", 1.0 * KB)
        wanted = [fetch.FetchPartition(partition=index, partition_max_bytes=100) for index in range(2000)]
        everything = fetch.Request(session_epoch=-1, topics=[fetch.FetchTopic(topic="nobody", partitions=wanted)])
        quiet = await slow.ask("Fetch", everything, version=12)
        assert quiet.throttle_time_ms > 0
        assert quiet.responses == [], "a waiting connection is neither charged nor answered"

    run_virtually(scenario)
