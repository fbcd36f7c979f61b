"""Tests OffsetCommit over a socket, at every version."""

from __future__ import annotations

from pathlib import Path

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import delete_topics
from kpybroker.wire.rpc import offset_commit as rpc
from tests.conftest import WithBroker
from tests.handlers.grouping import commit, committed, coordinator, member
from tests.serving import run_scenario

API = api_table.by_name["OffsetCommit"]


def asked(topic: str, topic_id: bytes, *offsets: int, metadata: str | None = None) -> rpc.OffsetCommitRequestTopic:
    partitions = [
        rpc.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata=metadata)
        for index, offset in enumerate(offsets)
    ]
    return rpc.OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=partitions)


def codes(reply: rpc.Response) -> list[list[int]]:
    return [[each.error_code for each in topic.partitions] for topic in reply.topics]


def test_every_version_commits_and_each_partition_has_its_code(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t", "u")
        t, u = node.broker.metadata.image.topics["t"].id, node.broker.metadata.image.topics["u"].id
        for version in range(API.min, API.max + 1):
            topics = [asked("t", t, version, 2, 3), asked("nosuch", b"\x01" * 16, 1), asked("u", u, 7)]
            reply = await peer.ask("OffsetCommit", rpc.Request(group_id="g", topics=topics), version=version)
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert codes(reply) == [[0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], [unknown], [0]]
            assert [each.name for each in reply.topics] == (["t", "nosuch", "u"] if version < 10 else ["", "", ""])
            assert await committed(peer, "g") == version

    with_broker(scenario)


def test_an_error_of_the_group_is_returned_for_each_known_partition(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        known = await member(peer, "g")
        for version in range(API.min, 10):
            assert await commit(peer, "g", version=version) == ErrorCode.UNKNOWN_MEMBER_ID
            more = {"member_id": known, "generation_id_or_member_epoch": 2}
            assert await commit(peer, "g", version=version, **more) == ErrorCode.ILLEGAL_GENERATION
            assert await commit(peer, "g", "nosuch", version=version) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            missing = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
            assert await commit(peer, "missing", version=version, **more) == missing
            more["generation_id_or_member_epoch"] = 1
            assert await commit(peer, "g", version=version, **more) == ErrorCode.NONE

    with_broker(scenario)


def test_metadata_has_a_limit_and_may_be_null(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        for metadata, code in (("x" * 8, 0), (None, 0), ("x" * 9, ErrorCode.OFFSET_METADATA_TOO_LARGE)):
            topics = [asked("t", bytes(16), 1, metadata=metadata)]
            reply = await peer.ask("OffsetCommit", rpc.Request(group_id="", topics=topics), version=9)
            assert codes(reply) == [[code]]

    with_broker(scenario, {"offset.metadata.max.bytes": "8"})


def test_deleting_a_topic_deletes_its_committed_offsets(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t", "u")
        await commit(peer, "g", "t")
        await commit(peer, "g", "u")
        await peer.ask("DeleteTopics", delete_topics.Request(topics=[delete_topics.DeleteTopicState(name="t")]))
        assert await committed(peer, "g", "t") == -1
        await coordinator(peer, "t")
        assert await committed(peer, "g", "t") == -1
        assert await committed(peer, "g", "u") == 5

    with_broker(scenario)


def test_commits_survive_a_restart(tmp_path: Path) -> None:
    async def before(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        for group in ("g", "h", "😀"):
            assert await commit(peer, group) == ErrorCode.NONE
        await commit(peer, "h", offset=6)

    async def after(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        assert [await committed(peer, group) for group in ("g", "h", "😀", "i")] == [5, 6, 5, -1]

    run_scenario(tmp_path, before)
    run_scenario(tmp_path, after)
