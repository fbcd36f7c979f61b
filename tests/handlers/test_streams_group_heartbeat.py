"""StreamsGroupHeartbeat over a socket: tasks, internal topics, and what prevents them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kpybroker.broker import streams_topics
from kpybroker.call import Call
from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.groups.ground.commands import InternalTopic
from kpybroker.server.node import Node
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import update_features
from kpybroker.wire.rpc.streams_group_heartbeat import KeyValue, TopicInfo
from oracle.streams_scenes import counting, passing
from tests.conftest import WithBroker
from tests.handlers.streaming import AT_ONCE, beat, join, joined, topic

MISSING_INTERNAL_TOPICS = 3
LONGER = {"group.streams.heartbeat.interval.ms": "10000"}
"""A failure is kept for two intervals."""
NO_CHANNEL = cast(Any, None)
"""In place of the channel to the controller: every use of it is a bug."""


def test_a_member_joins_stays_and_leaves(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        assert (await join(peer, passing("t"))).error_code == ErrorCode.NOT_COORDINATOR
        await topic(peer)
        told = await join(peer, passing("t"))
        [row] = told.active_tasks
        assert (told.member_id, row.subtopology_id, row.partitions) == ("m", "0", [0, 1])
        again = await beat(peer, told.member_epoch)
        assert (again.error_code, again.member_epoch, again.active_tasks) == (0, told.member_epoch, None)
        wrong = await beat(peer, told.member_epoch + 1)
        assert wrong.error_code == ErrorCode.FENCED_MEMBER_EPOCH
        assert (await beat(peer, -1)).member_epoch == -1
        assert (await beat(peer, 1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await beat(peer, 0)).error_code == ErrorCode.INVALID_REQUEST
        assert (await join(peer, passing("t"), "")).error_code == ErrorCode.INVALID_REQUEST

    with_broker(scenario, AT_ONCE)


def test_internal_topics_are_created_with_their_settings(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await topic(peer, partitions=3)
        told = await join(peer, counting("app", source="t"))
        [status] = told.status
        assert (status.status_code, told.active_tasks) == (MISSING_INTERNAL_TOPICS, [])
        told = await joined(peer, counting("app", source="t"))
        assert [(row.subtopology_id, row.partitions) for row in told.active_tasks] == [
            ("0", [0, 1, 2]),
            ("1", [0, 1, 2]),
        ]
        topics = node.broker.metadata.image.topics
        assert {len(topics[f"app-{kind}"].partitions) for kind in ("repartition", "changelog")} == {3}
        assert node.broker.metadata.image.config(2, "app-changelog") == {"cleanup.policy": "compact"}

    with_broker(scenario, AT_ONCE)


def test_why_a_topic_cannot_be_created_is_told_until_it_can(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await topic(peer)
        wrong = TopicInfo(name="c", topic_configs=[KeyValue(key="cleanup.policy", value="nonsense")])
        topology = passing("t", state_changelog_topics=[wrong])
        details: list[str] = []
        while "Creation failed" not in "".join(details):
            told = await join(peer, topology)
            details = [status.status_detail for status in told.status]
        assert details[0].startswith("Internal topics are missing: c; Creation failed: c (")
        assert "nonsense" in details[0]
        await topic(peer, "c", 2)
        assert (await joined(peer, topology)).active_tasks

    with_broker(scenario, AT_ONCE)


def test_few_topics_are_created_at_a_time(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_topics, "CREATED_MAX", 1)

    async def scenario(peer: Peer, node: Node) -> None:
        await topic(peer)
        told = await join(peer, counting("app", source="t"))
        assert "app-changelog, app-repartition" in told.status[0].status_detail
        await joined(peer, counting("app", source="t"))

    with_broker(scenario, AT_ONCE)


def test_few_failures_are_kept(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_topics, "FAILURES_MAX", 2)

    async def scenario(peer: Peer, node: Node) -> None:
        await topic(peer)
        wrong = [KeyValue(key="cleanup.policy", value="nonsense")]
        topics = [TopicInfo(name=f"c{at}", topic_configs=wrong) for at in range(5)]
        detail = ""
        while "Creation failed" not in detail:
            [status] = (await join(peer, passing("t", state_changelog_topics=topics))).status
            detail = status.status_detail
        assert detail.count("(") == 2

    with_broker(scenario, {**AT_ONCE, **LONGER})


def test_a_topology_must_not_read_what_is_internal(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await topic(peer)
        for name in ("__consumer_offsets", "not/valid", ""):
            assert (await join(peer, passing(name))).error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY

    with_broker(scenario, AT_ONCE)


def test_without_the_feature_streams_groups_are_not_served(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await topic(peer)
        off = update_features.FeatureUpdateKey(feature="streams.version", max_version_level=0, upgrade_type=2)
        assert (await peer.ask("UpdateFeatures", update_features.Request(feature_updates=[off]))).error_code == 0
        assert (await join(peer, passing("t"))).error_code == ErrorCode.UNSUPPORTED_VERSION

    with_broker(scenario, AT_ONCE)


def test_without_the_protocol_streams_groups_are_not_served(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await topic(peer)
        assert (await join(peer, passing("t"))).error_code == ErrorCode.UNSUPPORTED_VERSION

    with_broker(scenario, {**AT_ONCE, "group.coordinator.rebalance.protocols": "classic,consumer"})


def test_a_bug_in_a_creation_is_logged_and_the_creation_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        topics = streams_topics.StreamsTopics(NO_CHANNEL, lambda: 0)
        call = Call(by_name["StreamsGroupHeartbeat"].key, 0, None, "127.0.0.1", 1)
        for _ in range(2):  # the second one is not refused because of the first one
            topics.create(call, {"c": InternalTopic(1, 1, {})}, 1000)
            while any(task is not asyncio.current_task() for task in asyncio.all_tasks()):
                await asyncio.sleep(0)

    asyncio.run(scenario())
    assert [record.message for record in caplog.records] == ["bug in the creation of internal topics"] * 2
