"""Tests OffsetFetch over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import offset_fetch as rpc
from tests.conftest import WithBroker
from tests.handlers.grouping import commit, coordinator

API = api_table.by_name["OffsetFetch"]
Found = list[tuple[str, list[tuple[int, int, int, str | None, int]]]]


async def fetch(peer: Peer, version: int, group: str, topics: list[tuple[str, bytes, list[int]]] | None) -> Found:
    """The (partition, offset, epoch, metadata, code) of each topic, by its name or, for requests with ids, by its id in
    hex."""
    wanted = None
    if topics is not None:
        wanted = [rpc.OffsetFetchRequestTopics(name=n, topic_id=i, partition_indexes=p) for n, i, p in topics]
    single = None
    if topics is not None:
        single = [rpc.OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, _, p in topics]
    request = rpc.Request(
        group_id=group, topics=single, groups=[rpc.OffsetFetchRequestGroup(group_id=group, topics=wanted)]
    )
    reply = await peer.ask("OffsetFetch", request, version=version)
    of_group = reply.groups[0] if version >= 8 else reply
    assert of_group.error_code == 0
    return [
        (
            topic.topic_id.hex() if version >= 10 else topic.name,
            [
                (
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.metadata,
                    each.error_code,
                )
                for each in topic.partitions
            ],
        )
        for topic in of_group.topics
    ]


def test_every_version_returns_committed_offsets(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t", "u")
        t, u = node.broker.metadata.image.topics["t"].id, node.broker.metadata.image.topics["u"].id
        await commit(peer, "g", "t")
        await commit(peer, "g", "u", 6)
        for version in range(API.min, API.max + 1):
            epoch = 3 if version >= 5 else -1
            shown_t, shown_u = (t.hex(), u.hex()) if version >= 10 else ("t", "u")
            asked = [("t", t, [1, 0]), ("u", u, [0])]
            at_t, at_u = (0, 5, epoch, "note", 0), (0, 6, epoch, "note", 0)
            nothing = (1, -1, -1, "", 0)
            assert await fetch(peer, version, "g", asked) == [(shown_t, [nothing, at_t]), (shown_u, [at_u])]
            assert await fetch(peer, version, "unknown", asked[:1]) == [(shown_t, [nothing, (0, -1, -1, "", 0)])]
            if version >= 2:
                everything = await fetch(peer, version, "g", None)
                assert everything == [(shown_t, [at_t]), (shown_u, [at_u])]
                assert await fetch(peer, version, "unknown", None) == []

    with_broker(scenario)


def test_unknown_topics_have_no_offsets_and_unknown_ids_are_refused(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        assert await fetch(peer, 9, "g", [("nosuch", bytes(16), [0])]) == [("nosuch", [(0, -1, -1, "", 0)])]
        unknown = b"\x01" * 16
        expected = [(unknown.hex(), [(0, -1, -1, "", int(ErrorCode.UNKNOWN_TOPIC_ID))])]
        assert await fetch(peer, 10, "g", [("", unknown, [0])]) == expected

    with_broker(scenario)


def test_each_of_many_groups_is_answered_once(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        await commit(peer, "g")
        groups = [rpc.OffsetFetchRequestGroup(group_id=group, topics=None) for group in ("g", "h", "g")]
        reply = await peer.ask("OffsetFetch", rpc.Request(groups=groups, require_stable=True))
        assert [(each.group_id, len(each.topics)) for each in reply.groups] == [("g", 1), ("h", 0)]

    with_broker(scenario)


def test_without_a_coordinator_the_error_is_where_the_version_has_a_field(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topics = [rpc.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        groups = [rpc.OffsetFetchRequestGroup(group_id="g", topics=None)]
        for version in range(API.min, API.max + 1):
            request = rpc.Request(group_id="g", topics=topics, groups=groups)
            reply = await peer.ask("OffsetFetch", request, version=version)
            if version == 1:
                code = reply.topics[0].partitions[0].error_code
            else:
                code = reply.error_code if version < 8 else reply.groups[0].error_code
            assert code == ErrorCode.NOT_COORDINATOR

    with_broker(scenario)
