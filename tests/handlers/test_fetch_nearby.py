"""Tests that a consumer is directed to the replica in its rack, and that all replicas serve committed records
(KIP-392)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kpybroker.config import parse_config
from kpybroker.config.view_keys import VIEW_OF, VIEW_WHERE
from kpybroker.errors import ConfigError, ErrorCode
from kpybroker.wire.records.batch import split
from kpybroker.wire.rpc import create_topics, fetch, list_offsets
from tests.replication.virtual import VirtualCluster, play
from tests.server.test_authorization import Closed

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
RACKS = {1: {"broker.rack": "a"}, 2: {"broker.rack": "b"}, 3: {"broker.rack": "c"}}


def in_racks(scene: Any, **settings: str) -> None:
    play(scene, own=RACKS, replica_selector_class=RACK_AWARE, **settings)


def test_which_consumer_is_sent_to_which_replica() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3))
        await cluster.put(b"x", b"y")
        for rack, wanted in (("a", -1), ("b", 2), ("c", 3), ("elsewhere", -1), ("", -1)):
            row = await cluster.read(1, rack_id=rack, max_wait_ms=500)
            assert (row.error_code, row.preferred_read_replica, bool(row.records)) == (0, wanted, wanted < 0)
            assert row.high_watermark == 2
        before = cluster.loop.time()
        row = await cluster.read(1, 2, rack_id="b", max_wait_ms=30_000)
        assert row.preferred_read_replica == 2, "even if there is nothing to read yet"
        assert cluster.loop.time() - before < 1, "at once"
        for node_id in (2, 3):
            row = await cluster.read(node_id, rack_id="a")
            assert (row.preferred_read_replica, bool(row.records)) == (-1, True), (
                "only the leader names another replica"
            )
        cluster.machines[2].kill()
        await cluster.until(lambda: cluster.broker(1).metadata.image.brokers[2].fenced, "the leader knows its end")
        row = await cluster.read(1, rack_id="b")
        assert (row.preferred_read_replica, bool(row.records)) == (-1, True), "a dead replica is not preferred"

    in_racks(scene)


def test_an_unauthorized_consumer_is_not_sent_elsewhere() -> None:
    """Not even the high watermark is returned, regardless of whether another replica is nearer."""

    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3))
        await cluster.put(b"x")
        cluster.broker(1).metadata.authorizer = Closed()
        for rack in ("a", "b"):
            row = await cluster.read(1, rack_id=rack)
            assert row.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert (row.high_watermark, row.preferred_read_replica, bool(row.records)) == (-1, -1, False)

    in_racks(scene)


def test_a_session_is_redirected_once_for_each_fetch() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3))
        await cluster.put(b"x")
        wanted = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topic = fetch.FetchTopic(
            topic="t", topic_id=cluster.broker(1).metadata.image.topics["t"].id, partitions=[wanted]
        )
        first = await cluster.ask(
            "Fetch", fetch.Request(topics=[topic], session_epoch=0, max_wait_ms=100, min_bytes=1, rack_id="b"), 1
        )
        assert first.session_id
        for epoch in (1, 2):
            again = await cluster.ask(
                "Fetch",
                fetch.Request(
                    session_id=first.session_id, session_epoch=epoch, max_wait_ms=100, min_bytes=1, rack_id="b"
                ),
                1,
            )
            assert [row.preferred_read_replica for topic in again.responses for row in topic.partitions] == [2]

    in_racks(scene)


def test_a_follower_serves_committed_records_as_soon_as_it_has_them() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3))
        await cluster.put(b"x")
        for node_id in (2, 3):
            end = cluster.replica(1).log.end
            waiting = asyncio.get_running_loop().create_task(cluster.read(node_id, end, max_wait_ms=5_000))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            before = cluster.loop.time()
            await cluster.put(b"y")
            row = await waiting
            assert (row.error_code, row.high_watermark, bool(row.records)) == (0, end + 1, True)
            assert cluster.loop.time() - before < 0.2, "followers learn of it without waiting for their next fetch"
        # records that the replica has, but of which it does not know whether they are committed, are not returned
        cluster.machines[3].pause(True)
        end = cluster.replica(1).log.end
        unsure = asyncio.get_running_loop().create_task(cluster.put(b"z"))
        await cluster.until(lambda: cluster.replica(2).log.end == end + 1, "the other replica has the record")
        row = await cluster.read(2, end)
        assert (row.error_code, bool(row.records), row.high_watermark) == (0, False, end)
        cluster.machines[3].pause(False)
        await unsure
        await cluster.until(lambda: cluster.replica(2).log.high_watermark == end + 1, "it has committed", limit_s=1)
        assert (await cluster.read(2, end)).records

    in_racks(scene)


def test_what_a_follower_refuses() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3))
        await cluster.put(b"x")
        await cluster.until(lambda: cluster.replica(2).log.high_watermark == 1, "the follower knows")
        assert (await cluster.read(2, 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await cluster.read(2, 1)).error_code == 0
        row = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
        asked = list_offsets.Request(replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name="t", partitions=[row])])
        told = await cluster.ask("ListOffsets", asked, 2)
        assert told.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        old = fetch.Request(
            topics=[fetch.FetchTopic(topic="t", partitions=[fetch.FetchPartition(partition=0)])], session_epoch=-1
        )
        peer = await cluster.client.peer(2)
        told = await peer.ask("Fetch", old, version=10)
        assert told.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, (
            "it does not know the epoch"
        )
        for epoch, code in ((0, 0), (7, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            wanted = fetch.FetchPartition(partition=0, current_leader_epoch=epoch, partition_max_bytes=1 << 20)
            old.topics[0].partitions = [wanted]
            told = await peer.ask("Fetch", old, version=12)
            assert told.responses[0].partitions[0].error_code == code

    in_racks(scene)


def test_without_a_selector_no_consumer_is_redirected() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3))
        await cluster.put(b"x")
        row = await cluster.read(1, rack_id="b")
        assert (row.preferred_read_replica, bool(row.records)) == (-1, True)

    play(scene, own=RACKS)


def test_an_unknown_selector_is_refused() -> None:
    assert parse_config({"replica.selector.class": RACK_AWARE}).is_rack_aware
    leader = "org.apache.kafka.common.replica.LeaderSelector"
    assert not parse_config({"replica.selector.class": leader}).is_rack_aware
    with pytest.raises(ConfigError, match=r"replica\.selector\.class: com\.example\.Mine is not known here"):
        parse_config({"replica.selector.class": "com.example.Mine"})


def test_a_view_is_read_from_the_replica_in_the_rack() -> None:
    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3))
        configs = [
            create_topics.CreatableTopicConfig(name=VIEW_OF, value="t"),
            create_topics.CreatableTopicConfig(name=VIEW_WHERE, value="tombstone"),
        ]
        view = create_topics.CreatableTopic(name="v", num_partitions=-1, replication_factor=-1, configs=configs)
        told = await cluster.ask("CreateTopics", create_topics.Request(topics=[view], timeout_ms=5000), 1)
        assert told.topics[0].error_code == 0
        await cluster.put(b"x")
        wanted = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topic = fetch.FetchTopic(topic="v", topic_id=told.topics[0].topic_id, partitions=[wanted])
        request = fetch.Request(topics=[topic], session_epoch=-1, max_wait_ms=100, min_bytes=1, rack_id="b")
        row = (await cluster.ask("Fetch", request, 1)).responses[0].partitions[0]
        assert (row.error_code, row.preferred_read_replica, bytes(row.records)) == (0, 2, b"")
        row = (await cluster.ask("Fetch", request, 2)).responses[0].partitions[0]
        assert (row.error_code, row.preferred_read_replica, row.high_watermark) == (0, -1, 1)
        assert [(batch.base_offset, batch.record_count) for batch in split(bytearray(row.records))] == [(0, 0)]

    in_racks(scene)
