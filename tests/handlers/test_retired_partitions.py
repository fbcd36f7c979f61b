"""Tests topics with retired partitions over a socket: what clients see, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kpybroker.broker.empty_partitions import EmptyPartitions
from kpybroker.call import Reply
from kpybroker.client.peer import Peer
from kpybroker.config.partition_keys import EMPTY, GRACE, IN_USE
from kpybroker.controller.retirements import changed
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.server.node import Node
from kpybroker.topics import OFFSETS_TOPIC
from kpybroker.wire.records.batch import Record, encode_batch
from kpybroker.wire.rpc import (
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    create_partitions,
    delete_records,
    delete_topics,
    incremental_alter_configs,
    list_offsets,
    list_partition_reassignments,
    offset_commit,
    offset_delete,
    offset_fetch,
    share_group_heartbeat,
    txn_offset_commit,
)
from kpybroker.wire.stored import metadata as stored
from tests.asking import make, put
from tests.conftest import WithBroker
from tests.handlers import beginning, sharing
from tests.handlers.acl_setting import ALTER, BOB, CLUSTER, READ, SETTINGS, asked_by, create, creation
from tests.handlers.beginning import add, begin, end, settled
from tests.handlers.consuming import AT_ONCE, beat, joined, partitions
from tests.handlers.fetching import asking, rows, want
from tests.handlers.grouping import coordinator
from tests.handlers.retiring import DELETE, SET, altered, counts, grown, read, retire, shown
from tests.handlers.test_views import settings_of
from tests.handlers.transacting import write
from tests.handlers.viewing import created, make_view
from tests.serving import dialled, serving

ALTER_CONFIGS, CLUSTER_ACTION = 11, 9
UNKNOWN, INVALID = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION
READ_ONLY = "t.retired has the retired partitions of t, which can only be read; use t instead."


async def four(peer: Peer) -> bytes:
    """The topic t with four partitions, each of which has its own number as its only record. Returns its id."""
    topic_id = await make(peer, "t", 4, {"retention.ms": "123456789"})
    for index in range(4):
        assert (await put(peer, "t", b"%d" % index, index=index)).error_code == 0
    return topic_id


async def committing(peer: Peer, topic: str, index: int, offset: int, *, topic_id: bytes = bytes(16)) -> int:
    partition = offset_commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
    asked = offset_commit.OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[partition])
    version = 9 if topic else 10
    told = await peer.ask("OffsetCommit", offset_commit.Request(group_id="g", topics=[asked]), version=version)
    return int(told.topics[0].partitions[0].error_code)


async def commits(peer: Peer, *topics: tuple[str, list[int]]) -> dict[tuple[str, int], int]:
    """The committed offsets of the group g: those of all topics, or of these partitions."""
    asked = [offset_fetch.OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in topics]
    group = offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=asked or None)
    told = await peer.ask("OffsetFetch", offset_fetch.Request(groups=[group]), version=9)
    return {
        (topic.name, row.partition_index): row.committed_offset
        for topic in told.groups[0].topics
        for row in topic.partitions
    }


def test_retired_partitions_are_a_topic_of_their_own(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await four(peer)
        before = (await shown(peer))["t"]
        await retire(peer, "t", 2)
        after = await shown(peer)
        assert {name: len(topic.partitions) for name, topic in after.items()} == {"t": 2, "t.retired": 2}
        assert after["t"].topic_id == topic_id != after["t.retired"].topic_id
        assert after["t"].partitions == before.partitions[:2]
        assert [await read(peer, "t", index) for index in (0, 1)] == [[b"0"], [b"1"]]
        for version, retired_id in ((12, bytes(16)), (17, after["t.retired"].topic_id)):
            found = [
                await read(peer, "t.retired", index, version=version, topic_id=retired_id) for index in (0, 1, 2, -1)
            ]
            assert found == [[b"3"], [b"2"], UNKNOWN, UNKNOWN], "partition 0 is the last one of the topic"
        assert await read(peer, "t", 3) == [b"3"], "consumers that have not refreshed their metadata go on"
        at = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topic = list_offsets.ListOffsetsTopic(name="t.retired", partitions=[at])
        told = await peer.ask("ListOffsets", list_offsets.Request(replica_id=-1, topics=[topic]))
        assert (told.topics[0].partitions[0].error_code, told.topics[0].partitions[0].offset) == (0, 1)
        settings = await settings_of(peer, "t")
        assert (settings[IN_USE], settings[GRACE]) == ("2", "600000")
        assert IN_USE not in await settings_of(peer, "t.retired")
        assert (await settings_of(peer, "t.retired"))["retention.ms"] == "123456789"

    with_broker(scenario)


def test_retired_partitions_accept_records_during_the_grace_period(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await four(peer)
        await retire(peer, "t", 2)
        assert (await put(peer, "t", b"late", index=3)).error_code == 0
        assert await read(peer, "t.retired", 0) == [b"3", b"late"]
        assert (await altered(peer, "t", (GRACE, SET, "0"))) == (0, None)
        row = await put(peer, "t", b"too late", index=3)
        assert (row.error_code, row.error_message) == (UNKNOWN, "t-3 is retired")
        assert (await put(peer, "t", b"new", index=1)).error_code == 0
        assert await read(peer, "t.retired", 0) == [b"3", b"late"]
        row = await put(peer, "t.retired", b"never")
        assert (row.error_code, row.error_message) == (INVALID, READ_ONLY)

    with_broker(scenario)


def test_committed_offsets_are_carried_over_and_back(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        await four(peer)
        for index in range(4):
            assert await committing(peer, "t", index, 10 + index) == 0
        await retire(peer, "t", 2)
        everything = {("t", 0): 10, ("t", 1): 11, ("t.retired", 0): 13, ("t.retired", 1): 12}
        assert await commits(peer) == everything
        assert await commits(peer, ("t.retired", [1, 2]), ("t", [1])) == {
            ("t.retired", 1): 12,
            ("t.retired", 2): -1,
            ("t", 1): 11,
        }
        assert await committing(peer, "t.retired", 0, 23) == 0
        assert await committing(peer, "", 1, 22, topic_id=(await shown(peer))["t.retired"].topic_id) == 0
        assert await committing(peer, "t.retired", 2, 1) == UNKNOWN
        assert await commits(peer, ("t.retired", [0, 1])) == {("t.retired", 0): 23, ("t.retired", 1): 22}
        partition = txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=33)
        topic = txn_offset_commit.TxnOffsetCommitRequestTopic(name="t.retired", partitions=[partition])
        asked = txn_offset_commit.Request(transactional_id="x", group_id="g", producer_id=1, topics=[topic])
        told = await peer.ask("TxnOffsetCommit", asked, version=3)
        assert told.topics[0].partitions[0].error_code != UNKNOWN
        assert await committing(peer, "t", 2, 32) == 0, "from a member that has not refreshed its metadata"
        assert await altered(peer, "t", (IN_USE, DELETE, None)) == (0, None)
        assert await commits(peer) == {("t", 0): 10, ("t", 1): 11, ("t", 2): 32, ("t", 3): 23}
        await retire(peer, "t", 2)
        there = offset_delete.OffsetDeleteRequestTopic(
            name="t.retired",
            partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=at) for at in (0, 2)],
        )
        gone = await peer.ask("OffsetDelete", offset_delete.Request(group_id="g", topics=[there]))
        assert [row.error_code for row in gone.topics[0].partitions] == [0, UNKNOWN]
        assert await commits(peer) == {("t", 0): 10, ("t", 1): 11, ("t.retired", 1): 32}
        assert await altered(peer, "t", (IN_USE, DELETE, None)) == (0, None)
        assert await commits(peer, ("u.retired", [0])) == {("u.retired", 0): -1}
        assert await commits(peer, ("t.retired", [0])) == {("t.retired", 0): -1}

    with_broker(scenario)


def test_a_coordinator_that_lags_behind_does_not_say_that_there_is_no_offset(with_broker: WithBroker) -> None:
    """Without an offset, a consumer would begin at the end or the beginning."""

    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        await four(peer)
        assert await committing(peer, "t", 2, 12) == 0
        view = node.broker.metadata
        for in_use, index in ((3, 0), (2, 1)):
            before = view.image
            await retire(peer, "t", in_use)
            after = view.image
            view.image = before
            asked = offset_fetch.OffsetFetchRequestTopics(name="t.retired", partition_indexes=[index])
            group = offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=[asked])
            request = offset_fetch.Request(groups=[group])
            told = await peer.ask("OffsetFetch", request, version=9)
            assert told.groups[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            asking_again = asyncio.ensure_future(peer.ask("OffsetFetch", request, version=9))
            await asyncio.sleep(0)
            view.image = after
            assert (await asking_again).groups[0].error_code == 0
        assert await commits(peer, ("t.retired", [1])) == {("t.retired", 1): 12}

    with_broker(scenario)


def test_a_coordinator_that_lags_behind_is_asked_by_topic_id(with_broker: WithBroker) -> None:
    """The id does not change when more partitions are retired, so the coordinator knows it already."""

    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        await four(peer)
        assert await committing(peer, "t", 2, 12) == 0
        view = node.broker.metadata
        await retire(peer, "t", 3)
        before, known = view.image, view.image.topic("t.retired")
        await retire(peer, "t", 2)
        after = view.image
        assert known is not None
        asked = offset_fetch.OffsetFetchRequestTopics(topic_id=known.id, partition_indexes=[1])
        group = offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=[asked])
        request = offset_fetch.Request(groups=[group])
        view.image = before
        told = await peer.ask("OffsetFetch", request, version=10)
        assert told.groups[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        view.image = after
        told = await peer.ask("OffsetFetch", request, version=10)
        assert told.groups[0].topics[0].partitions[0].committed_offset == 12

    with_broker(scenario)


def test_partitions_come_back_with_their_records(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await four(peer)
        await retire(peer, "t", 1)
        assert await grown(peer, "t", 1) == (ErrorCode.INVALID_PARTITIONS, "Topic already has 1 partition(s).")
        wanted = create_partitions.CreatePartitionsAssignment(broker_ids=[1])
        topic = create_partitions.CreatePartitionsTopic(name="t", count=2, assignments=[wanted])
        told = await peer.ask("CreatePartitions", create_partitions.Request(topics=[topic], timeout_ms=5000))
        assert told.results[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "come back first" in told.results[0].error_message
        assert await grown(peer, "t", 2) == (0, None)
        assert await counts(peer) == {"t": 2, "t.retired": 2}
        assert await read(peer, "t", 1) == [b"1"]
        await retire(peer, "t", 1)
        assert [await read(peer, "t.retired", index) for index in range(3)] == [[b"3"], [b"2"], [b"1"]]
        assert await grown(peer, "t", 5) == (0, None)
        assert await counts(peer) == {"t": 5}
        assert [await read(peer, "t", index) for index in range(5)] == [[b"0"], [b"1"], [b"2"], [b"3"], []]
        assert (await put(peer, "t", b"again", index=3)).error_code == 0
        assert IN_USE not in await settings_of(peer, "t")

    with_broker(scenario)


def test_retired_partitions_go_when_they_are_empty(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await four(peer)
        await retire(peer, "t", 2)
        broker = node.broker
        report = EmptyPartitions(broker.metadata, broker.replication.hosting, broker.membership.channel.ask).report
        cut = [delete_records.DeleteRecordsPartition(partition_index=index, offset=-1) for index in (0, 1)]
        asked = delete_records.Request(topics=[delete_records.DeleteRecordsTopic(name="t.retired", partitions=cut)])
        assert [row.error_code for row in (await peer.ask("DeleteRecords", asked)).topics[0].partitions] == [0, 0]
        await report()
        assert await counts(peer) == {"t": 2, "t.retired": 2}, "they still accept records"
        assert await altered(peer, "t", (GRACE, SET, "0")) == (0, None)
        await report()
        assert await counts(peer) == {"t": 2}
        assert (await settings_of(peer, "t"))[EMPTY] == "2,3"
        assert len((await shown(peer, "t.retired"))["t.retired"].partitions) == 2, "tools can still find their replicas"
        row = await created(peer, "t.retired", {}, num_partitions=1, replication_factor=1)
        assert (row.error_code, row.error_message) == (
            ErrorCode.TOPIC_ALREADY_EXISTS,
            "'t.retired' is the name of the retired partitions of 't'.",
        )
        assert await altered(peer, "t", (GRACE, SET, "600000")) == (0, None)
        assert (await put(peer, "t", b"late", index=3)).error_code == 0
        await report()
        assert await counts(peer) == {"t": 2, "t.retired": 2}
        assert await read(peer, "t.retired", 0) == ErrorCode.OFFSET_OUT_OF_RANGE, "its log begins at 1"
        assert await altered(peer, "t", (GRACE, SET, "0")) == (0, None)
        await report()
        assert (await settings_of(peer, "t"))[EMPTY] == "2"
        assert await grown(peer, "t", 3) == (0, None)
        assert EMPTY not in await settings_of(peer, "t")

    with_broker(scenario)


@pytest.mark.parametrize(
    ("topic", "name", "value", "text"),
    [
        ("t", IN_USE, "0", "at least 1"),
        ("t", IN_USE, "5", "t has 4 partitions, so 5 cannot be in use; add partitions with CreatePartitions"),
        ("t", IN_USE, "two", "two"),
        ("t", GRACE, "-1", "at least 0"),
        ("t", GRACE, "1" + "0" * 18, "no more than 1000000000000000"),
        ("t", GRACE, "5", f"{GRACE} needs {IN_USE}, the number of partitions in use"),
        ("t", EMPTY, "3", f"{EMPTY} needs {IN_USE}"),
        ("c", IN_USE, "1", "c cannot be compacted and have retired partitions"),
        ("n", IN_USE, "1", "there is a topic of this name; delete it first"),
        ("w", IN_USE, "1", "there is a topic of this name; delete it first"),
        ("l" * 245, IN_USE, "1", "which is not possible"),
        ("__scheduled.s", IN_USE, "1", "an internal topic, whose partitions cannot be retired"),
        (OFFSETS_TOPIC, IN_USE, "1", "an internal topic"),
    ],
)
def test_what_cannot_be_retired(with_broker: WithBroker, topic: str, name: str, value: str, text: str) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await four(peer)
        await coordinator(peer)
        await make(peer, "c", 2, {"cleanup.policy": "compact"})
        await make(peer, "s", 2, {"kpybroker.delivery.scheduled": "true", "cleanup.policy": "delete"})
        await make(peer, "n", 2)
        await make(peer, "n.retired")
        await make(peer, "w", 2)
        await make_view(peer, "w.retired", "tombstone", "n")
        await make(peer, "l" * 245, 2)
        before = await shown(peer)
        code, message = await altered(peer, topic, (name, SET, value))
        assert code == ErrorCode.INVALID_CONFIG
        assert text in (message or "")
        assert await shown(peer) == before

    with_broker(scenario)


def test_a_topic_with_retired_partitions_cannot_be_compacted(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await four(peer)
        await retire(peer, "t", 2)
        code, message = await altered(peer, "t", ("cleanup.policy", SET, "compact,delete"))
        assert (code, "cannot be compacted" in (message or "")) == (ErrorCode.INVALID_CONFIG, True)
        assert await altered(peer, "t", ("retention.ms", SET, "5000")) == (0, None)
        assert await counts(peer) == {"t": 2, "t.retired": 2}
        row = await created(peer, "u", {IN_USE: "1"}, num_partitions=2, replication_factor=1)
        assert (row.error_code, "cannot be set for a new topic" in row.error_message) == (
            ErrorCode.INVALID_CONFIG,
            True,
        )

    with_broker(scenario)


def test_retired_partitions_are_deleted_with_their_topic_only(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await four(peer)
        await retire(peer, "t", 2)

        async def deleted(name: str) -> tuple[int, str | None]:
            asked = delete_topics.Request(topics=[delete_topics.DeleteTopicState(name=name)], timeout_ms=5000)
            row = (await peer.ask("DeleteTopics", asked)).responses[0]
            return row.error_code, row.error_message

        code, message = await deleted("t.retired")
        assert code == ErrorCode.INVALID_REQUEST
        assert message == (
            "t.retired has the retired partitions of t: delete their records with DeleteRecords, or delete t."
        )
        assert await deleted("t") == (0, None)
        assert await counts(peer) == {}
        await make(peer, "t", 4)
        assert await counts(peer) == {"t": 4}
        assert node.broker.metadata.image.retirements == {}

    with_broker(scenario)


def test_retired_partitions_can_be_reassigned(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await four(peer)
        await retire(peer, "t", 2)

        async def moved(name: str, index: int, *replicas: int) -> int:
            place = alter_partition_reassignments.ReassignablePartition(partition_index=index, replicas=list(replicas))
            topic = alter_partition_reassignments.ReassignableTopic(name=name, partitions=[place])
            asked = alter_partition_reassignments.Request(topics=[topic], timeout_ms=5000)
            return int((await peer.ask("AlterPartitionReassignments", asked)).responses[0].partitions[0].error_code)

        assert await moved("t.retired", 0, 1) == 0
        assert await moved("t.retired", 0, 9) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await moved("t.retired", 2, 1) == UNKNOWN
        everything = list_partition_reassignments.Request(topics=None, timeout_ms=5000)
        assert (await peer.ask("ListPartitionReassignments", everything)).topics == []

    with_broker(scenario)


def test_groups_follow_the_number_of_partitions_in_use(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        await four(peer)
        told = await joined(peer, "g", "m")
        assert partitions(told) == [0, 1, 2, 3]
        await retire(peer, "t", 2)
        found = None
        while found != [0, 1]:
            told = await beat(peer, "g", "m", told.member_epoch)
            found = partitions(told) or found
        retired_id = (await shown(peer))["t.retired"].topic_id
        told = await joined(peer, "h", "m", subscribed_topic_names=["t.retired"])
        assert [(each.topic_id, each.partitions) for each in told.assignment.topic_partitions] == [(retired_id, [0, 1])]
        shared = share_group_heartbeat.Request(
            group_id="s", member_id="m", member_epoch=0, subscribed_topic_names=["t", "t.retired"]
        )
        answer = await peer.ask("ShareGroupHeartbeat", shared)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert "share groups cannot read those" in answer.error_message
        places = [
            add_partitions_to_txn.AddPartitionsToTxnTopic(name=name, partitions=[index])
            for name, index in (("t", 3), ("t.retired", 0))
        ]
        added = add_partitions_to_txn.Request(
            v3_and_below_transactional_id="x", v3_and_below_producer_id=1, v3_and_below_topics=places
        )
        codes = (await peer.ask("AddPartitionsToTxn", added, version=3)).results_by_topic_v3_and_below
        assert [topic.results_by_partition[0].partition_error_code for topic in codes] == [
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            INVALID,
        ]

    with_broker(scenario, AT_ONCE)


def test_the_rights_to_retired_partitions_are_those_of_the_topic(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await four(peer)
        await retire(peer, "t", 2)
        retired_id = (await shown(peer))["t.retired"].topic_id

        async def code(name: str = "t.retired") -> int:
            told: Any = await asked_by(node, BOB, "Fetch", asking(name, retired_id, want(0, 0)))
            if isinstance(told, Reply):
                while not told.done:
                    await asyncio.sleep(0)
                told = told.response
            return int(rows(told)[0].error_code)

        await create(peer, creation("t.retired", READ))
        assert await code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await create(peer, creation("t", READ))
        assert await code() == 0
        assert await altered(peer, "t", (IN_USE, DELETE, None)) == (0, None)
        await make(peer, "u", 2)
        await create(peer, creation("u", READ))
        await retire(peer, "u", 1)
        retired_id = (await shown(peer))["u.retired"].topic_id
        assert await code("u.retired") == 0, "without another change of ACLs"

    with_broker(scenario, SETTINGS)


def test_retired_partitions_are_kept_over_a_restart_and_void_after_other_changes(tmp_path: Path) -> None:
    """Only other software can create a topic of their name, or add partitions without taking them back."""

    async def whole() -> None:
        async with serving(tmp_path) as node, dialled(node) as peer:
            await four(peer)
            await retire(peer, "t", 2)
        async with serving(tmp_path) as node, dialled(node) as peer:
            assert await counts(peer) == {"t": 2, "t.retired": 2}
            assert await read(peer, "t.retired", 0) == [b"3"]
            image = node.broker.metadata.image
            records = list(image.records())
            named = next(record for record in records if getattr(record, "name", "") == "t")
            other = type(named)(name="t.retired", topic_id=bytes(range(16)))
            hidden = image.apply([other], image.offset, image.epoch)
            assert hidden.retired("t.retired") is None
            assert hidden.topic("t.retired") == hidden.topics["t.retired"]
            assert hidden.stored_as("t.retired", 0) == ("t.retired", 0)
            more = next(record for record in records if getattr(record, "partition_id", -1) == 3)
            more.partition_id = 4
            grown = image.apply([more], image.offset, image.epoch)
            assert (grown.retirement("t"), grown.topic("t")) == (None, grown.topics["t"])

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_another_number_of_partitions_makes_another_retired_topic(with_broker: WithBroker) -> None:
    """Its partitions are counted from the last one, so they are others now, and no member goes on with the former."""

    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        await four(peer)
        await retire(peer, "t", 2)
        first = (await shown(peer))["t.retired"].topic_id
        assert await grown(peer, "t", 3) == (0, None)
        await retire(peer, "t", 2)
        assert (await shown(peer))["t.retired"].topic_id == first
        assert await grown(peer, "t", 6) == (0, None)
        await retire(peer, "t", 2)
        assert (await shown(peer))["t.retired"].topic_id != first
        assert await read(peer, "t.retired", 0, version=17, topic_id=first) == ErrorCode.UNKNOWN_TOPIC_ID
        assert await committing(peer, "", 0, 3, topic_id=first) == ErrorCode.UNKNOWN_TOPIC_ID
        assert await read(peer, "t.retired", 2) == [b"3"]

    with_broker(scenario)


def test_an_empty_partition_is_shown_again_only_if_it_gets_a_record(with_broker: WithBroker) -> None:
    """A restart of its leader begins the grace period anew."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", 3)
        await retire(peer, "t", 2, grace_ms=0)
        broker = node.broker
        report = EmptyPartitions(broker.metadata, broker.replication.hosting, broker.membership.channel.ask).report
        await report()
        assert await counts(peer) == {"t": 2}
        assert await altered(peer, "t", (GRACE, SET, "600000")) == (0, None)
        await report()
        assert await counts(peer) == {"t": 2}
        assert (await put(peer, "t", b"late", index=2)).error_code == 0
        await report()
        assert await counts(peer) == {"t": 2, "t.retired": 1}

    with_broker(scenario)


def test_replacing_all_settings_does_not_take_partitions_back(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await four(peer)
        await retire(peer, "t", 2)

        async def replaced(**settings: str) -> int:
            configs = [alter_configs.AlterableConfig(name=name, value=value) for name, value in settings.items()]
            asked = alter_configs.AlterConfigsResource(resource_type=2, resource_name="t", configs=configs)
            return int(
                (await peer.ask("AlterConfigs", alter_configs.Request(resources=[asked]))).responses[0].error_code
            )

        assert await replaced(**{"retention.ms": "1000"}) == 0
        assert await counts(peer) == {"t": 2, "t.retired": 2}
        assert await replaced(**{IN_USE: "3"}) == 0
        assert await counts(peer) == {"t": 3, "t.retired": 1}
        assert (await settings_of(peer, "t"))["retention.ms"] != "1000"

    with_broker(scenario)


def test_partitions_are_not_retired_while_one_is_reassigned(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await four(peer)
        state = ControllerState()
        for record in node.broker.metadata.image.records():
            state.replay(record)
        state.replay(stored.PartitionChangeRecord(topic_id=topic_id, partition_id=1, adding_replicas=[2]))
        with pytest.raises(KafkaError, match=r"t-1 is being reassigned; retire partitions when that has ended"):
            changed(state, node.broker.config, "t", {IN_USE: "2"})

    with_broker(scenario)


def test_scheduled_records_and_markers_reach_retired_partitions(with_broker: WithBroker) -> None:
    """A transaction that was begun before, and a record that is due afterwards."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "s", 2, {"kpybroker.delivery.scheduled": "true"})
        due = encode_batch([Record(0, -1, None, b"due", (("deliver-after", b"300"),))])
        assert (await put(peer, "s", index=1, records=bytes(due))).error_code == 0
        await beginning.coordinator(peer)
        who = await begin(peer)
        assert await add(peer, who, 1, topic="s") == [0]
        row = await write(peer, who[0], 0, b"in", epoch=who[1], topic="s", index=1, transactional_id="x")
        assert row.error_code == 0
        await retire(peer, "s", 1, grace_ms=0)
        assert (await end(peer, who, True)).error_code == 0
        await settled(peer)
        log = node.broker.replication.hosting.leads("s", 1).log
        assert log.last_stable == log.end
        while b"due" not in (found := await read(peer, "s.retired", 0)):
            await asyncio.sleep(0.01)
        assert b"in" in found

    with_broker(scenario)


def test_share_groups_read_the_partitions_in_use(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await sharing.topic(peer, partitions=4)
        told = await sharing.joined(peer)
        while sorted(partitions(told) or ()) != [0, 1, 2, 3]:
            told = await sharing.beat(peer, "g", "m", told.member_epoch)
        await retire(peer, "t", 2)
        while sorted(partitions(told) or ()) != [0, 1]:
            told = await sharing.beat(peer, "g", "m", told.member_epoch)
        await sharing.configure(peer, "h", auto_offset_reset="earliest")
        told = await sharing.joined(peer, "h", "n")
        assert sorted(partitions(told) or ()) == [0, 1], "a new group, too"
        got = await sharing.fetch(peer, topic_id, 0, group_id="h", member_id="n")
        assert sharing.ranges(got) == [(0, 19, 1)]

    with_broker(scenario, sharing.AT_ONCE)


def test_who_may_change_the_partitions_in_use(with_broker: WithBroker) -> None:
    """As for more partitions, ALTER is needed; only nodes may say which partitions are empty."""

    async def scenario(peer: Peer, node: Node) -> None:
        await four(peer)
        await retire(peer, "t", 3)

        async def code(name: str, value: str) -> int:
            config = incremental_alter_configs.AlterableConfig(name=name, config_operation=SET, value=value)
            asked = incremental_alter_configs.AlterConfigsResource(resource_type=2, resource_name="t", configs=[config])
            request = incremental_alter_configs.Request(resources=[asked])
            return int((await asked_by(node, BOB, "IncrementalAlterConfigs", request)).responses[0].error_code)

        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await create(peer, creation("t", ALTER_CONFIGS))
        assert [await code("retention.ms", "5000"), await code(IN_USE, "2"), await code(EMPTY, "3")] == [
            0,
            refused,
            refused,
        ]
        await create(peer, creation("t", ALTER))
        assert [await code(IN_USE, "2"), await code(EMPTY, "3")] == [0, refused]
        await create(peer, creation("kafka-cluster", CLUSTER_ACTION, resource=CLUSTER))
        assert await code(EMPTY, "3") == 0

    with_broker(scenario, SETTINGS)
