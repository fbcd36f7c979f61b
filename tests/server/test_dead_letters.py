"""Dead letters of share groups (KIP-1191) on a real node: their contents, and the states of the original records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from kpybroker.client.peer import Peer
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.shares.dead_letters import AT_ONCE as AT_MOST
from kpybroker.shares.dead_letters import DELIVERY_COUNT, ENABLE, GROUP, MESSAGE, OFFSET, PARTITION, TOPIC
from kpybroker.wire.records.batch import Record, encode_batch, read_records, split
from kpybroker.wire.rpc import create_topics, find_coordinator, incremental_alter_configs, update_features
from tests.handlers.fetching import asking, rows, want
from tests.handlers.sharing import (
    ACCEPT,
    AT_ONCE,
    REJECT,
    RELEASE,
    acknowledge,
    append,
    codes,
    configure,
    described_offsets,
    fetch,
    joined,
    ranges,
    started,
)
from tests.server.clustering import Cluster, run_cluster
from tests.server.clustering import dialled as dialled_in
from tests.serving import crashed, dialled, run_scenario, serving

pytestmark = pytest.mark.slow

SETTINGS = {**AT_ONCE, "unstable.feature.versions.enable": "true"}
LETTERS = "dlq.t"


async def alter(peer: Peer, kind: ResourceType, name: str, settings: Mapping[str, str]) -> None:
    configs = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=0, value=value)
        for key, value in settings.items()
    ]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    told = await peer.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[resource]))
    assert told.responses[0].error_code == 0, told


async def finalize(peer: Peer, level: int) -> int:
    wanted = update_features.FeatureUpdateKey(
        feature="share.version", max_version_level=level, upgrade_type=1 if level > 1 else 2
    )
    told = await peer.ask("UpdateFeatures", update_features.Request(feature_updates=[wanted]))
    return int(told.error_code)


async def make_letters(peer: Peer, **settings: str) -> None:
    """Create the dead letter topic."""
    configs = [
        create_topics.CreatableTopicConfig(name=name, value=value)
        for name, value in {ENABLE: "true", **settings}.items()
    ]
    made = create_topics.CreatableTopic(name=LETTERS, num_partitions=1, replication_factor=1, configs=configs)
    told = await peer.ask("CreateTopics", create_topics.Request(topics=[made]))
    assert told.topics[0].error_code == 0, told


async def begin(peer: Peer, *, copies: bool = False, **settings: object) -> bytes:
    """Create a group with a dead letter topic and a topic with twenty records, and fetch all of them. Returns the
    topic's id."""
    assert await finalize(peer, 2) == 0
    topic_id = await started(peer, **settings)
    own = {"errors.deadletterqueue.topic.name": LETTERS}
    if copies:
        own["errors.deadletterqueue.copy.record.enable"] = "true"
    await alter(peer, ResourceType.GROUP, "g", own)
    return topic_id


async def letters(peer: Peer, node: Node, count: int) -> list[Record]:
    """Wait until there are `count` dead letters, and return them."""
    while LETTERS not in node.broker.metadata.image.topics:
        await asyncio.sleep(0)
    topic_id = node.broker.metadata.image.topics[LETTERS].id
    found: list[Record] = []
    while len(found) < count:
        told = await peer.ask("Fetch", asking(LETTERS, topic_id, want(0, len(found)), max_wait_ms=9_000))
        row = rows(told)[0]
        assert row.error_code == 0
        if row.records:
            found += [each for batch in split(bytearray(row.records)) for each in read_records(batch)]
    return found


async def read_all(node: Node) -> bytes:
    log = node.broker.replication.hosting.leads(LETTERS, 0).log
    return bytes(await log.read_cold(0, 1 << 20, upper=log.end, min_one=True))


def headers(record: Record) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers}


async def start_of(peer: Peer, offset: int) -> None:
    """Wait until the group has nothing in flight below this offset."""
    while (await described_offsets(peer, "g"))["t", 0].start_offset != offset:
        pass


def test_rejected_records_become_dead_letters_and_are_archived(tmp_path: Path) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await begin(peer)
        await make_letters(peer)
        assert ranges(await fetch(peer, topic_id, 0)) == [(0, 19, 1)]
        assert codes(await acknowledge(peer, topic_id, 1, (0, 1, REJECT), (2, 2, (0,)), (3, 19, ACCEPT))) == [0]
        found = await letters(peer, node, 2)
        assert [(record.key, record.value, headers(record)) for record in found] == [
            (
                None,
                None,
                {
                    TOPIC: "t",
                    PARTITION: "0",
                    OFFSET: str(offset),
                    GROUP: "g",
                    DELIVERY_COUNT: "1",
                    MESSAGE: "Offset rejected by client.",
                },
            )
            for offset in (0, 1)
        ]
        await start_of(peer, 20)
        assert node.broker.replication.hosting.leads(LETTERS, 0).log.end == 2, "a gap is no dead letter"

    run_scenario(tmp_path, scenario, SETTINGS)


def test_copies_have_the_records_key_value_and_headers(tmp_path: Path) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await begin(peer, copies=True, delivery_count_limit=2)
        await make_letters(peer)
        await fetch(peer, topic_id, 0)
        assert codes(await acknowledge(peer, topic_id, 1, (8, 12, RELEASE))) == [0]
        for number in range(5):  # in its last delivery, a record is delivered alone
            assert ranges(await fetch(peer, topic_id, 2 + 2 * number)) == [(8 + number, 8 + number, 2)]
            told = await acknowledge(peer, topic_id, 3 + 2 * number, (8 + number, 8 + number, RELEASE))
            assert codes(told) == [0]
        found = {int(headers(record)[OFFSET]): record for record in await letters(peer, node, 5)}
        assert [record.value for _, record in sorted(found.items())] == [b"8", b"9", b"0", b"1", b"2"]
        assert {headers(record)[MESSAGE] for record in found.values()} == {
            "Offset delivery count exceeded the threshold."
        }
        assert {headers(record)[DELIVERY_COUNT] for record in found.values()} == {"2"}

    run_scenario(tmp_path, scenario, SETTINGS)


def test_a_copy_that_is_too_large_is_left_out(tmp_path: Path) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await begin(peer, copies=True)
        await make_letters(peer, **{"max.message.bytes": "256"})
        await fetch(peer, topic_id, 0)
        told = await acknowledge(peer, topic_id, 1, (0, 2, REJECT))
        assert codes(told) == [0]
        found = await letters(peer, node, 3)
        assert [(headers(record)[OFFSET], record.value) for record in found] == [("0", b"0"), ("1", b"1"), ("2", b"2")]
        await alter(peer, ResourceType.TOPIC, LETTERS, {"max.message.bytes": str(len(encode_batch(found[:1])) - 1)})
        await acknowledge(peer, topic_id, 2, (3, 3, REJECT))
        assert (await letters(peer, node, 4))[3].value is None

    run_scenario(tmp_path, scenario, SETTINGS)


def test_records_wait_for_a_topic_that_can_be_used(tmp_path: Path) -> None:
    """Kafka archives records whose dead letter cannot be written; here they stay in flight, so none is lost."""

    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await begin(peer)
        await fetch(peer, topic_id, 0)
        assert codes(await acknowledge(peer, topic_id, 1, (0, 0, REJECT), (1, 19, ACCEPT))) == [0]
        assert (await described_offsets(peer, "g"))["t", 0].start_offset == 0
        assert ranges(await fetch(peer, topic_id, 2, max_wait_ms=0)) == [], "they are not delivered again"
        await make_letters(peer)
        assert len(await letters(peer, node, 1)) == 1
        await start_of(peer, 20)

    run_scenario(tmp_path, scenario, SETTINGS)


def test_a_group_without_dead_letters_archives_what_waits(tmp_path: Path) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await begin(peer)
        await fetch(peer, topic_id, 0)
        await acknowledge(peer, topic_id, 1, (0, 0, REJECT), (1, 19, ACCEPT))
        assert (await described_offsets(peer, "g"))["t", 0].start_offset == 0
        assert await finalize(peer, 1) == 0
        await start_of(peer, 20)
        assert LETTERS not in node.broker.metadata.image.topics

    run_scenario(tmp_path, scenario, SETTINGS)


def test_a_missing_topic_is_created_if_the_cluster_allows_it(tmp_path: Path) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await begin(peer)
        await fetch(peer, topic_id, 0)
        await acknowledge(peer, topic_id, 1, (0, 0, REJECT))
        assert len(await letters(peer, node, 1)) == 1
        config = node.broker.metadata.image.config(ResourceType.TOPIC, LETTERS)
        assert config == {ENABLE: "true", "message.timestamp.type": "CreateTime"}

    run_scenario(tmp_path, scenario, {**SETTINGS, "errors.deadletterqueue.auto.create.topics.enable": "true"})


def test_what_a_killed_leader_has_not_written_is_written_by_the_next(tmp_path: Path) -> None:
    async def whole() -> None:
        async with serving(tmp_path / "a", SETTINGS) as node, dialled(node) as peer:
            topic_id = await begin(peer)
            await fetch(peer, topic_id, 0)
            assert codes(await acknowledge(peer, topic_id, 1, (0, 1, REJECT), (2, 19, ACCEPT))) == [0]
            left = crashed(tmp_path / "a", tmp_path / "b")
        async with serving(left, SETTINGS) as node, dialled(node) as peer:
            await make_letters(peer)
            assert ranges(await fetch(peer, topic_id, 0, max_wait_ms=0)) == []
            found = await letters(peer, node, 2)
            assert [headers(record)[OFFSET] for record in found] == ["0", "1"]
            await start_of(peer, 20)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_level_2_is_refused_unless_unstable_features_are_enabled(tmp_path: Path) -> None:
    async def scenario(peer: Peer, _node: Node) -> None:
        assert await finalize(peer, 2) == ErrorCode.INVALID_UPDATE_VERSION

    run_scenario(tmp_path, scenario, AT_ONCE)


def test_many_dead_letters_are_written_in_several_requests(tmp_path: Path) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await begin(peer, copies=True)
        await make_letters(peer)
        await append(peer, "t", AT_MOST + 1)
        assert ranges(await fetch(peer, topic_id, 0, max_records=2 * AT_MOST))[-1][1] == 20 + AT_MOST
        assert codes(await acknowledge(peer, topic_id, 1, (0, 20 + AT_MOST, REJECT))) == [0]
        found = await letters(peer, node, 21 + AT_MOST)
        assert [int(headers(record)[OFFSET]) for record in found] == list(range(21 + AT_MOST))
        sizes = [batch.record_count for batch in split(bytearray(await read_all(node)))]
        assert sizes == [AT_MOST, 21]

    run_scenario(tmp_path, scenario, SETTINGS)


def test_the_dead_letter_topic_may_be_on_another_broker(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        nodes = cluster.nodes
        peers = {node_id: await dialled_in(node) for node_id, node in nodes.items()}
        enabled = [create_topics.CreatableTopicConfig(name=ENABLE, value="true")]
        for name, leader, configs in (("t", 1, []), (LETTERS, 2, enabled)):
            placed = create_topics.CreatableReplicaAssignment(partition_index=0, broker_ids=[leader])
            made = create_topics.CreatableTopic(
                name=name, num_partitions=-1, replication_factor=-1, assignments=[placed], configs=configs
            )
            told = await peers[1].ask("CreateTopics", create_topics.Request(topics=[made], timeout_ms=9000))
            assert told.topics[0].error_code == 0, told
        assert await finalize(peers[1], 2) == 0
        await append(peers[1], "t", 10)
        await configure(peers[1], "g", auto_offset_reset="earliest")
        await alter(peers[1], ResourceType.GROUP, "g", {"errors.deadletterqueue.topic.name": LETTERS})
        asked = find_coordinator.Request(coordinator_keys=["g"])
        [found] = (await peers[1].ask("FindCoordinator", asked)).coordinators
        await joined(peers[found.node_id])
        topic_id = nodes[1].broker.metadata.image.topics["t"].id
        assert ranges(await fetch(peers[1], topic_id, 0)) == [(0, 9, 1)]
        assert codes(await acknowledge(peers[1], topic_id, 1, (4, 4, REJECT))) == [0]
        [letter] = await letters(peers[2], nodes[2], 1)
        assert headers(letter)[OFFSET] == "4"
        for peer in peers.values():
            peer.close()

    run_cluster(tmp_path, play, unstable_feature_versions_enable="true", group_share_assignment_interval_ms="0")
