"""Tests Metadata, which returns the current brokers, topics and leaders."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import kpybroker.call as call_module
from kpybroker.call import ANSWERS_MAX_BYTES, Answers
from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.handlers.metadata import KEPT_NAME_MAX, KEY_BYTES_A_TOPIC, TOPICS_AT_ONCE
from kpybroker.security.principal import ANONYMOUS, Principal
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.encoded import Encoded
from kpybroker.wire.rpc import create_partitions, delete_topics, describe_topic_partitions, metadata
from kpybroker.wire.stored import metadata as stored
from tests.asking import make
from tests.conftest import WithBroker
from tests.handlers.acl_setting import BOB, DENY, DESCRIBE, READ, SETTINGS, asked_by, create, creation
from tests.handlers.strangers import live_stranger
from tests.handlers.test_alter_partition import make_topic

ROW = api_table.by_name["Metadata"]
EVERY = range(ROW.min, ROW.max + 1)
NOT_ASKED = -(2**31)
EVERY_OPERATION = 3576
BAD_NAMES = ["", "a b", ".", "..", "x" * 250, "a/b", "ä"]


def about(*names: str, create: bool = False, **facts: Any) -> metadata.Request:
    topics = [metadata.MetadataRequestTopic(name=name) for name in names]
    return metadata.Request(topics=topics, allow_auto_topic_creation=create, **facts)


async def told(peer: Peer, request: metadata.Request, version: int = ROW.max) -> dict[str | None, Any]:
    return {topic.name: topic for topic in (await peer.ask("Metadata", request, version=version)).topics}


def test_clients_get_the_addresses_of_their_own_listener(with_broker: WithBroker) -> None:
    """For example, clients inside and outside a container network need different addresses."""

    async def scenario(inside: Peer, node: Node) -> None:
        outer = node.advertised[1]
        outside = await Peer.dial(node.broker.world.network, "127.0.0.1", outer.port)
        await outside.negotiate()
        request = metadata.Request(topics=None)
        for _ in range(2):  # the second response is from the cache
            for peer, listener in ((inside, node.advertised[0]), (outside, outer)):
                (broker,) = (await peer.ask("Metadata", request)).brokers
                assert (broker.host, broker.port) == (listener.host, listener.port)
        outside.close()

    with_broker(
        scenario,
        {
            "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
        },
    )


def test_cached_responses_are_not_shared_between_principals(with_broker: WithBroker) -> None:
    """The authorized operations depend on the principal and its host."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        request = about("t", include_topic_authorized_operations=True)
        await create(peer, creation("t", READ), creation("t", DESCRIBE))

        async def operations(principal: Principal) -> int:
            told = await asked_by(node, principal, "Metadata", request)
            (topic,) = parse(metadata.Response, ROW.max, told).topics
            return int(topic.topic_authorized_operations)

        for _ in range(2):  # the second response is from the cache
            assert await operations(BOB) == 1 << READ | 1 << DESCRIBE
            assert await operations(ANONYMOUS) == EVERY_OPERATION
        await create(peer, creation("t", READ, DENY))
        assert await operations(BOB) == 1 << DESCRIBE

    with_broker(scenario, SETTINGS)


def test_every_version_returns_brokers_topics_and_leaders(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t", partitions=3)
        for version in EVERY:
            response = await peer.ask("Metadata", about("t"), version=version)
            (broker,) = response.brokers
            assert f"{broker.host}:{broker.port}" == node.bootstrap
            assert broker.node_id == node.broker.node_id
            if version >= 1:
                assert response.controller_id == broker.node_id, "the controller is a live broker"
            if version >= 2:
                assert response.cluster_id == node.broker.storage.cluster_id
            (topic,) = response.topics
            assert (topic.error_code, topic.name, topic.is_internal) == (0, "t", False)
            assert topic.topic_id == (topic_id if version >= 10 else bytes(16))
            assert [p.partition_index for p in topic.partitions] == [0, 1, 2]
            for p in topic.partitions:
                assert (p.error_code, p.leader_id, p.replica_nodes, p.isr_nodes, p.offline_replicas) == (
                    0,
                    broker.node_id,
                    [broker.node_id],
                    [broker.node_id],
                    [],
                )
                real = node.broker.replication.hosting.leads("t", p.partition_index).leader_epoch
                assert p.leader_epoch == (real if version >= 7 else -1)

    with_broker(scenario)


def test_no_response_is_without_brokers(with_broker: WithBroker) -> None:
    """A fenced broker that knows no other brokers returns itself, because a client without brokers cannot recover."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        image, me = node.broker.metadata.image, node.broker.node_id
        fenced = stored.BrokerRegistrationChangeRecord(broker_id=me, broker_epoch=image.brokers[me].epoch, fenced=1)
        node.broker.metadata.follow(image, image.apply([fenced], image.offset + 1, image.epoch))
        for version in EVERY:
            response = await peer.ask("Metadata", about("t"), version=version)
            assert [(one.node_id, f"{one.host}:{one.port}") for one in response.brokers] == [(me, node.bootstrap)]
            (partition,) = response.topics[0].partitions
            assert (partition.leader_id, partition.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
        node.broker.metadata.follow(node.broker.metadata.image, image)

    with_broker(scenario)


def test_all_none_and_some(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "a")
        await make(peer, "b")
        assert set(await told(peer, about(), 0)) == {"a", "b"}, "v0: an empty list means all"
        for version in EVERY[1:]:
            assert set(await told(peer, metadata.Request(topics=None), version)) == {"a", "b"}
            assert await told(peer, about(), version) == {}
            assert set(await told(peer, about("b"), version)) == {"b"}

    with_broker(scenario)


def test_by_id(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        unknown = bytes(range(16))
        wanted = [metadata.MetadataRequestTopic(name=None, topic_id=each) for each in (topic_id, unknown)]
        for version in (12, 13):
            found, absent = (await peer.ask("Metadata", metadata.Request(topics=wanted), version=version)).topics
            assert (found.error_code, found.name, found.topic_id) == (0, "t", topic_id)
            assert (absent.error_code, absent.name, absent.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown)
            assert absent.partitions == []
            as_java = metadata.Request(topics=[metadata.MetadataRequestTopic(name="", topic_id=topic_id)])
            (found,) = (await peer.ask("Metadata", as_java, version=version)).topics
            assert (found.error_code, found.name, found.topic_id) == (0, "t", topic_id)

    with_broker(scenario)


def test_unknown_topics_are_created_only_if_both_sides_allow_it(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in EVERY[4:]:
            refused = (await told(peer, about("quiet"), version))["quiet"]
            assert (refused.error_code, refused.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
        assert "quiet" not in node.broker.metadata.image.topics
        for version in EVERY:
            name = f"made-{version}"
            made = (await told(peer, about(name, create=True), version))[name]
            assert (made.error_code, len(made.partitions)) == (0, 2), "it exists before the response is sent"
            assert node.broker.replication.hosting.leads(name, 1).log.end == 0

    with_broker(scenario, {"num.partitions": "2"})


def test_a_broker_that_creates_no_topics(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in EVERY:
            answer = (await told(peer, about("t", create=True), version))["t"]
            assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not node.broker.metadata.image.topics

    with_broker(scenario, {"auto.create.topics.enable": "false"})


def test_a_bad_name_is_refused_and_creates_nothing(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in (0, 4, ROW.max):
            answers = await told(peer, about(*BAD_NAMES, "good", create=True), version)
            assert {name for name, topic in answers.items() if topic.error_code == 0} == {"good"}
            codes = {answers[name].error_code for name in BAD_NAMES}
            assert codes == {ErrorCode.INVALID_TOPIC_EXCEPTION}
        assert set(node.broker.metadata.image.topics) == {"good"}

    with_broker(scenario)


def test_a_response_reflects_the_last_change(with_broker: WithBroker) -> None:
    """Responses are cached between changes, and every change clears the cache."""

    async def scenario(peer: Peer, node: Node) -> None:
        every, one = metadata.Request(topics=None), about("t")
        for _ in range(2):
            assert await told(peer, every) == {}
            assert (await told(peer, one))["t"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        first = await make(peer, "t")
        for request in (every, one, every):
            assert (await told(peer, request))["t"].topic_id == first
        more = create_partitions.CreatePartitionsTopic(name="t", count=3, assignments=None)
        await peer.ask("CreatePartitions", create_partitions.Request(topics=[more]))
        for request in (every, one):
            assert len((await told(peer, request))["t"].partitions) == 3
        gone = delete_topics.Request(topics=[delete_topics.DeleteTopicState(name="t")])
        await peer.ask("DeleteTopics", gone)
        assert (await told(peer, one))["t"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        again = await make(peer, "t")
        assert again != first
        for request in (every, one):
            assert (await told(peer, request))["t"].topic_id == again

    with_broker(scenario)


def test_authorized_operations_are_returned_if_asked_for(with_broker: WithBroker) -> None:
    """The bits of AclOperation, as in Kafka: for a topic, those from READ (3) to ALTER_CONFIGS (11), and those of a
    cluster."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        asks = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
        for version in range(8, ROW.max + 1):
            quiet = await peer.ask("Metadata", about("t"), version=version)
            assert quiet.topics[0].topic_authorized_operations == NOT_ASKED
            assert quiet.cluster_authorized_operations == NOT_ASKED
            full = about("t", **asks)
            response = await peer.ask("Metadata", full, version=version)
            on_a_topic = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
            assert response.topics[0].topic_authorized_operations == on_a_topic
            on_the_cluster = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
            assert response.cluster_authorized_operations == (on_the_cluster if version <= 10 else NOT_ASKED)

    with_broker(scenario)


def test_internal_topics_are_marked(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await node.broker.topic_creation.internal("__consumer_offsets")
        for version in EVERY[1:]:
            answer = (await told(peer, about("__consumer_offsets"), version))["__consumer_offsets"]
            assert (answer.error_code, answer.is_internal) == (0, True)

    with_broker(scenario)


@pytest.mark.slow
def test_a_fenced_broker_leads_nothing(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with live_stranger(node) as stranger:
            await make_topic(peer, 2)
            partition = (await describe(peer)).topics[0].partitions[0]
            assert (partition.error_code, partition.leader_id, partition.offline_replicas) == (0, 2, [])
            await stranger.beat(want_fence=True)
            told = await describe(peer)
            partition = told.topics[0].partitions[0]
            assert node.broker.metadata.image.topics["t"].partitions[0].leader == 2, (
                "in the metadata: it is the only replica"
            )
            assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
            assert (partition.replica_nodes, partition.offline_replicas) == ([2], [2])
            assert [broker.node_id for broker in told.brokers] == [1, 2], "it was live until a moment ago"
            asked = describe_topic_partitions.Request(topics=[describe_topic_partitions.TopicRequest(name="t")])
            pages = await peer.ask("DescribeTopicPartitions", asked)
            (shown,) = pages.topics[0].partitions
            assert (shown.error_code, shown.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)

    async def describe(peer: Peer) -> metadata.Response:
        told: metadata.Response = await peer.ask("Metadata", metadata.Request(topics=None))
        return told

    with_broker(scenario)


def test_responses_about_impossible_names_are_not_cached(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for name, kept in (("n" * 249, 1), ("n" * 250, 1), ("m" * 30_000, 1)):
            asked = metadata.Request(topics=[metadata.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
            told = await peer.ask("Metadata", asked, version=12)
            assert told.topics[0].error_code
            assert len(node.broker.metadata.answers) == kept

    with_broker(scenario)


def test_cached_answers_have_a_limit_in_bytes(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit applies to requests with a few names, and to requests with so many that the response is built in
    several turns."""
    monkeypatch.setattr(call_module, "ANSWERS_MAX_BYTES", 200_000)

    async def scenario(peer: Peer, node: Node) -> None:
        answers = node.broker.metadata.answers
        for number in range(100):
            for count in (1, TOPICS_AT_ONCE + 1):
                names = [f"{number}-{each}".ljust(KEPT_NAME_MAX, "x") for each in range(count)]
                await peer.ask("Metadata", about(*names))
                assert answers.size_bytes <= 200_000
                assert len(answers) * KEY_BYTES_A_TOPIC <= answers.size_bytes
        assert len(answers) > 1

    with_broker(scenario)


def test_an_answer_that_is_larger_than_the_cache_is_not_kept() -> None:
    answers = Answers()
    answers.keep("small", Encoded(b"x"), 1)
    answers.keep("large", Encoded(bytes(ANSWERS_MAX_BYTES)), 1)
    assert answers.get("small") == b"x"
    assert answers.get("large") is None
    assert answers.size_bytes == 2


def test_an_answer_that_is_being_made_is_shared_and_kept_when_it_is_complete() -> None:
    async def whole() -> None:
        answers, loop = Answers(), asyncio.get_running_loop()
        good, bad, late = (loop.create_future() for _ in range(3))
        answers.keep("late", late, 1)
        answers.clear()
        answers.keep("good", good, 1)
        answers.keep("bad", bad, 1)
        assert answers.get("good") is good
        good.set_result(Encoded(b"made"))
        bad.set_exception(RuntimeError("not made"))
        late.set_result(Encoded(b"of another image"))
        await asyncio.sleep(0)
        assert answers.get("good") == b"made"
        assert answers.get("bad") is None
        assert answers.get("late") is None
        assert answers.size_bytes == 5

    asyncio.run(whole())
