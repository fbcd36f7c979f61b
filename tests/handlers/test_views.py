"""Tests views over a socket: how they are created, changed and deleted, what serves them, and what refuses them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kpybroker.call import Reply
from kpybroker.client.peer import Peer
from kpybroker.config.resource_type import ResourceType
from kpybroker.config.view_keys import VIEW_OF, VIEW_WHERE
from kpybroker.controller.views import VIEWS_MAX
from kpybroker.errors import ErrorCode
from kpybroker.metadata.views import TopicView
from kpybroker.server.node import Node
from kpybroker.wire.rpc import (
    add_partitions_to_txn,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    describe_topic_partitions,
    elect_leaders,
    incremental_alter_configs,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    share_group_heartbeat,
)
from tests.asking import make, put
from tests.conftest import WithBroker
from tests.handlers.acl_setting import BOB, READ, SETTINGS, asked_by, create, creation
from tests.handlers.consuming import AT_ONCE, beat, joined, partitions
from tests.handlers.fetching import asking, rows, want
from tests.handlers.grouping import commit, committed, coordinator
from tests.handlers.viewing import created, make_view
from tests.serving import dialled, serving

TAGGED = 'tag == "a"'
CREATE, ALTER_CONFIGS, DESCRIBE_CONFIGS = 5, 11, 10


def view(of: str = "t", where: str = TAGGED) -> dict[str, str]:
    return {VIEW_OF: of, VIEW_WHERE: where}


async def shown(peer: Peer, *names: str) -> dict[str, Any]:
    asked = [metadata.MetadataRequestTopic(name=name) for name in names] or None
    told = await peer.ask("Metadata", metadata.Request(topics=asked, allow_auto_topic_creation=False))
    return {topic.name: topic for topic in told.topics}


async def settings_of(peer: Peer, name: str) -> dict[str, Any]:
    wanted = describe_configs.DescribeConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name)
    told = (await peer.ask("DescribeConfigs", describe_configs.Request(resources=[wanted]))).results[0]
    assert told.error_code == 0
    return {row.name: row.value for row in told.configs}


def change(name: str, value: str, view: str = "v", operation: int = 0) -> incremental_alter_configs.Request:
    config = incremental_alter_configs.AlterableConfig(name=name, config_operation=operation, value=value)
    return incremental_alter_configs.Request(
        resources=[
            incremental_alter_configs.AlterConfigsResource(
                resource_type=ResourceType.TOPIC, resource_name=view, configs=[config]
            )
        ]
    )


async def deleted(peer: Peer, *names: str) -> list[int]:
    told = await peer.ask("DeleteTopics", delete_topics.Request(topic_names=list(names), timeout_ms=5000), version=5)
    return [row.error_code for row in told.responses]


def test_a_view_is_shown_like_its_source(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t", 3, {"retention.ms": "5000"})
        row = await created(peer, "v", view())
        assert (row.error_code, row.num_partitions, row.replication_factor) == (0, 3, 1)
        found = await shown(peer)
        assert found["v"].topic_id == row.topic_id != topic_id
        assert found["v"].partitions == found["t"].partitions
        by_id = metadata.Request(topics=[metadata.MetadataRequestTopic(name=None, topic_id=row.topic_id)])
        assert (await peer.ask("Metadata", by_id)).topics == [found["v"]]
        pages = await peer.ask("DescribeTopicPartitions", describe_topic_partitions.Request(topics=[]))
        assert {topic.name: len(topic.partitions) for topic in pages.topics} == {"t": 3, "v": 3}
        settings = await settings_of(peer, "v")
        assert (settings[VIEW_OF], settings[VIEW_WHERE], settings["retention.ms"]) == ("t", TAGGED, "5000")
        assert VIEW_OF not in await settings_of(peer, "t")

    with_broker(scenario)


@pytest.mark.parametrize(
    ("name", "configs", "facts", "code", "text"),
    [
        ("v", view(where="tag = 1"), {}, ErrorCode.INVALID_CONFIG, "expected one of ==, !=, in, prefix, found ="),
        ("v", view(where=""), {}, ErrorCode.INVALID_CONFIG, "a view needs kpybroker.view.where"),
        ("v", view(where="tombstone " + " " * 4000), {}, ErrorCode.INVALID_CONFIG, "at most 4000"),
        ("v", {VIEW_OF: "t"}, {}, ErrorCode.INVALID_CONFIG, "a view needs kpybroker.view.where"),
        ("v", {VIEW_WHERE: TAGGED}, {}, ErrorCode.INVALID_CONFIG, "needs kpybroker.view.of"),
        ("v", view("gone"), {}, ErrorCode.INVALID_CONFIG, "there is no topic gone; create it first"),
        ("v", view("v"), {}, ErrorCode.INVALID_CONFIG, "cannot be a view of itself"),
        ("v", view("w"), {}, ErrorCode.INVALID_CONFIG, f"create a view of t with an expression such as ({TAGGED}) and"),
        ("v", view("__consumer_offsets"), {}, ErrorCode.INVALID_CONFIG, "an internal topic"),
        ("__consumer_offsets", view(), {}, ErrorCode.INVALID_CONFIG, "the name of an internal topic"),
        ("v", {**view(), "retention.ms": "1"}, {}, ErrorCode.INVALID_CONFIG, "retention.ms cannot be set for it"),
        ("v", view(), {"num_partitions": 2}, ErrorCode.INVALID_PARTITIONS, "leave their numbers out"),
        ("v", view(), {"replication_factor": 3}, ErrorCode.INVALID_PARTITIONS, "leave their numbers out"),
        ("t", view(), {}, ErrorCode.TOPIC_ALREADY_EXISTS, "already exists"),
        ("w", view(), {}, ErrorCode.TOPIC_ALREADY_EXISTS, "already exists"),
        ("w", {}, {}, ErrorCode.TOPIC_ALREADY_EXISTS, "already exists"),
        ("a b", view(), {}, ErrorCode.INVALID_TOPIC_EXCEPTION, "invalid"),
    ],
)
def test_views_that_are_refused(
    with_broker: WithBroker, name: str, configs: dict[str, str], facts: dict[str, int], code: ErrorCode, text: str
) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await make_view(peer, "w", TAGGED)
        row = await created(peer, name, configs, **facts)
        assert row.error_code == code
        assert text in row.error_message
        assert set(await shown(peer)) == {"t", "w"}

    with_broker(scenario)


def test_the_most_views_of_a_cluster(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        given = [create_topics.CreatableTopicConfig(name=key, value=value) for key, value in view().items()]
        wanted = [
            create_topics.CreatableTopic(name=f"v{at}", num_partitions=-1, replication_factor=-1, configs=given)
            for at in range(VIEWS_MAX + 1)
        ]
        told = await peer.ask("CreateTopics", create_topics.Request(topics=wanted, timeout_ms=9000))
        refused = [row for row in told.topics if row.error_code]
        assert [row.error_code for row in refused] == [ErrorCode.POLICY_VIOLATION]
        assert f"has {VIEWS_MAX} views" in refused[0].error_message
        assert await deleted(peer, "v0") == [0]
        assert (await created(peer, "another", view())).error_code == 0

    with_broker(scenario)


def test_only_the_expression_of_a_view_can_be_changed(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await make_view(peer, "v", TAGGED)

        async def altered(*given: Any, **facts: Any) -> tuple[int, str | None]:
            told = (await peer.ask("IncrementalAlterConfigs", change(*given, **facts))).responses[0]
            return told.error_code, told.error_message

        assert await altered(VIEW_WHERE, "tombstone") == (0, None)
        assert (await settings_of(peer, "v"))[VIEW_WHERE] == "tombstone"
        for given, facts, text in (
            ((VIEW_WHERE, "tombston"), {}, "did you mean"),
            ((VIEW_WHERE, ""), {"operation": 1}, "a view needs"),
            ((VIEW_OF, "u"), {}, "cannot be changed; delete v, and create it again"),
            (("retention.ms", "1"), {}, "set it for t"),
            ((VIEW_WHERE, "tombstone"), {"view": "t"}, "can only be set for a view"),
        ):
            code, message = await altered(*given, **facts)
            assert code == ErrorCode.INVALID_CONFIG
            assert text in (message or "")
        assert (await settings_of(peer, "v"))[VIEW_WHERE] == "tombstone"

    with_broker(scenario)


def test_views_are_deleted_with_their_source_and_alone(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        first = await make_view(peer, "v", TAGGED)
        await make_view(peer, "w", TAGGED)
        for name in ("t", "v", "w"):
            assert await commit(peer, "g", name) == 0
        assert await deleted(peer, "w") == [0]
        assert set(await shown(peer)) == {"t", "v", "__consumer_offsets"}
        assert await deleted(peer, "w") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await committed(peer, "g", "t") == 5
        assert await deleted(peer, "t") == [0]
        assert set(await shown(peer)) == {"__consumer_offsets"}
        await make(peer, "t", 2)
        again = await make_view(peer, "v", TAGGED)
        await make_view(peer, "w", TAGGED)
        assert again != first, "a recreated source is another topic"
        for name in ("v", "w"):
            while await committed(peer, "g", name) != -1:  # offsets of deleted topics are removed in the background
                await asyncio.sleep(0)

    with_broker(scenario)


def test_everything_but_reading_is_refused(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        view_id = await make_view(peer, "v", TAGGED)
        text = "v is a view of t, which can only be read; use t instead."
        row = await put(peer, "v", b"a")
        assert (row.error_code, row.error_message) == (ErrorCode.INVALID_TOPIC_EXCEPTION, text)
        grown = create_partitions.CreatePartitionsTopic(name="v", count=9, assignments=None)
        told = await peer.ask("CreatePartitions", create_partitions.Request(topics=[grown], timeout_ms=5000))
        assert (told.results[0].error_code, told.results[0].error_message) == (17, text)
        place = alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=[1])
        moved = alter_partition_reassignments.ReassignableTopic(name="v", partitions=[place])
        told = await peer.ask("AlterPartitionReassignments", alter_partition_reassignments.Request(topics=[moved]))
        assert (told.responses[0].partitions[0].error_code, told.responses[0].partitions[0].error_message) == (17, text)
        chosen = elect_leaders.TopicPartitions(topic="v", partitions=[0])
        told = await peer.ask("ElectLeaders", elect_leaders.Request(topic_partitions=[chosen], timeout_ms=5000))
        assert told.replica_election_results[0].partition_result[0].error_message == text
        cut = delete_records.DeleteRecordsPartition(partition_index=0, offset=0)
        asked = delete_records.Request(topics=[delete_records.DeleteRecordsTopic(name="v", partitions=[cut])])
        assert (await peer.ask("DeleteRecords", asked)).topics[0].partitions[0].error_code == 17
        path = node.broker.storage.log_dirs.online[0].path
        there = alter_replica_log_dirs.AlterReplicaLogDirTopic(name="v", partitions=[0])
        to = alter_replica_log_dirs.AlterReplicaLogDir(path=path, topics=[there])
        told = await peer.ask("AlterReplicaLogDirs", alter_replica_log_dirs.Request(dirs=[to]))
        assert told.results[0].partitions[0].error_code == 17
        added = add_partitions_to_txn.Request(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=1,
            v3_and_below_topics=[add_partitions_to_txn.AddPartitionsToTxnTopic(name="v", partitions=[0])],
        )
        told = await peer.ask("AddPartitionsToTxn", added, version=3)
        assert told.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 17
        shared = share_group_heartbeat.Request(
            group_id="s", member_id="m", member_epoch=0, subscribed_topic_names=["t", "v"]
        )
        told = await peer.ask("ShareGroupHeartbeat", shared)
        assert told.error_code == ErrorCode.INVALID_REQUEST
        assert "share groups cannot read views; subscribe to t" in told.error_message
        replica = asking("v", view_id, want(0, 0), replica_id=2)
        row = rows(await peer.ask("Fetch", replica, version=12))[0]
        assert (row.error_code, bytes(row.records)) == (ErrorCode.INVALID_TOPIC_EXCEPTION, b"")

    with_broker(scenario)


def test_offsets_and_epochs_are_those_of_the_source(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await make_view(peer, "v", TAGGED)
        await put(peer, "t", b"a", b"b")
        for timestamp in (-1, -2, -3, 0):
            found = []
            for name in ("t", "v"):
                asked = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
                topic = list_offsets.ListOffsetsTopic(name=name, partitions=[asked])
                told = await peer.ask("ListOffsets", list_offsets.Request(replica_id=-1, topics=[topic]))
                found.append(told.topics[0].partitions)
            assert found[0] == found[1]
        ended = []
        for name in ("t", "v"):
            at = offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
            topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic=name, partitions=[at])
            told = await peer.ask(
                "OffsetForLeaderEpoch", offset_for_leader_epoch.Request(replica_id=-1, topics=[topic])
            )
            ended.append(told.topics[0].partitions)
        assert ended[0] == ended[1]
        assert ended[0][0].end_offset == 2

    with_broker(scenario)


def test_groups_are_assigned_the_partitions_of_views(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        view_id = await make_view(peer, "v.a", TAGGED)
        told = await joined(peer, "g", "m", subscribed_topic_names=["v.a"])
        assert [topic.topic_id for topic in told.assignment.topic_partitions] == [view_id]
        assert partitions(told) == [0, 1]
        told = await joined(peer, "h", "m", subscribed_topic_names=[], subscribed_topic_regex="v[.].*")
        while not partitions(told):  # the expression is evaluated in the background
            told = await beat(peer, "h", "m", told.member_epoch)
        assert [topic.topic_id for topic in told.assignment.topic_partitions] == [view_id]
        assert await commit(peer, "c", "v.a", 7) == 0
        assert (await committed(peer, "c", "v.a"), await committed(peer, "c", "t")) == (7, -1)

    with_broker(scenario, AT_ONCE)


def test_the_rights_to_a_view_are_those_of_its_name(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        view_id = await make_view(peer, "v", TAGGED)

        async def read(name: str, uuid: bytes) -> int:
            told = await asked_by(node, BOB, "Fetch", asking(name, uuid, want(0, 0)))
            if isinstance(told, Reply):
                while not told.done:
                    await asyncio.sleep(0)
                told = told.response
            return int(rows(told)[0].error_code)

        assert await read("v", view_id) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await create(peer, creation("v", READ))
        assert (await read("v", view_id), await read("t", topic_id)) == (0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    with_broker(scenario, SETTINGS)


def test_the_maker_of_a_view_needs_to_read_its_source(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        given = [create_topics.CreatableTopicConfig(name=key, value=value) for key, value in view().items()]
        wanted = create_topics.CreatableTopic(name="v", num_partitions=-1, replication_factor=-1, configs=given)
        request = create_topics.Request(topics=[wanted], timeout_ms=5000)

        async def make_and_change() -> tuple[int, int]:
            made = (await asked_by(node, BOB, "CreateTopics", request)).topics[0].error_code
            told = await asked_by(node, BOB, "IncrementalAlterConfigs", change(VIEW_WHERE, "tombstone"))
            return made, told.responses[0].error_code

        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await create(peer, creation("v", CREATE), creation("v", ALTER_CONFIGS))
        assert await make_and_change() == (refused, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await make_view(peer, "v", TAGGED)
        assert await make_and_change() == (refused, refused)
        await create(peer, creation("t", READ))
        assert await make_and_change() == (ErrorCode.TOPIC_ALREADY_EXISTS, 0)
        assert await deleted(peer, "v") == [0]
        assert (await make_and_change())[0] == 0

    with_broker(scenario, SETTINGS)


def test_views_are_kept_over_a_restart_and_hidden_by_a_topic(tmp_path: Path) -> None:
    """Only other software can create a topic with the name of a view."""

    async def whole() -> None:
        async with serving(tmp_path) as node, dialled(node) as peer:
            await make(peer, "t")
            view_id = await make_view(peer, "v", TAGGED)
        async with serving(tmp_path) as node, dialled(node) as peer:
            assert (await shown(peer))["v"].topic_id == view_id
            image = node.broker.metadata.image
            assert image.views == {"v": TopicView("v", "t", TAGGED)}
            assert image.view("v") is not None
            renamed = next(record for record in image.records() if getattr(record, "name", "") == "t")
            renamed.name, renamed.topic_id = "v", bytes(range(16))
            hidden = image.apply([renamed], image.offset, image.epoch)
            assert (hidden.view("v"), hidden.topic_by_id(view_id)) == (None, None)
            assert hidden.topic("v") == hidden.topics["v"]
            assert set(hidden.readable) == {"t", "v"}

    asyncio.run(asyncio.wait_for(whole(), 60))
