"""The logs of coordinators keep what they keep: no request makes it unfindable, and none lets it age away."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpybroker.errors import ErrorCode
from kpybroker.peer import Peer
from kpybroker.server.node import Node
from kpybroker.wire.rpc import create_partitions, create_topics, incremental_alter_configs
from tests.asking import make
from tests.conftest import WithBroker
from tests.handlers.grouping import commit, committed, coordinator
from tests.handlers.test_create_partitions import grow
from tests.handlers.test_create_topics import topic
from tests.handlers.test_delete_records import TO_THE_END, cut
from tests.serving import run_scenario

GROUPS = [f"g{number}" for number in range(20)]
SET, DELETE, TOPIC = 0, 1, 2
COORDINATORS = ["__consumer_offsets", "__transaction_state", "__share_group_state"]


async def alter(peer: Peer, name: str, value: str | None) -> tuple[int, str]:
    config = incremental_alter_configs.AlterableConfig(
        name="cleanup.policy", config_operation=DELETE if value is None else SET, value=value
    )
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config])
    asked = incremental_alter_configs.Request(resources=[resource])
    (told,) = (await peer.ask("IncrementalAlterConfigs", asked)).responses
    return told.error_code, told.error_message or ""


def test_more_partitions_are_refused_and_every_commit_is_found(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer, "t")
        for offset, group in enumerate(GROUPS):
            assert await commit(peer, group, offset=offset) == 0
        asked = create_partitions.Request(topics=[grow("__consumer_offsets", 60), grow("t", 60)])
        internal, other = (await peer.ask("CreatePartitions", asked)).results
        assert internal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "offsets.topic.num.partitions" in internal.error_message
        assert other.error_code == 0
        assert [await committed(peer, group) for group in GROUPS] == list(range(len(GROUPS)))

    with_broker(scenario)


@pytest.mark.parametrize("name", COORDINATORS)
def test_their_number_of_partitions_stays(with_broker: WithBroker, name: str) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, name, partitions=3)
        for count in (2, 3, 4, 20_000):
            asked = create_partitions.Request(topics=[grow(name, count)])
            (told,) = (await peer.ask("CreatePartitions", asked)).results
            assert told.error_code != 0
            assert len(node.broker.image.topics[name].partitions) == 3

    with_broker(scenario)


@pytest.mark.parametrize("name", COORDINATORS)
def test_they_are_compacted_and_nothing_else(with_broker: WithBroker, name: str) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for policy in ("delete", "compact,delete", ""):
            asked = create_topics.Request(topics=[topic(name, 3, **{"cleanup.policy": policy})])
            (told,) = (await peer.ask("CreateTopics", asked)).topics
            assert told.error_code == ErrorCode.INVALID_CONFIG
        await make(peer, name, partitions=3)
        assert node.broker.image.config(TOPIC, name)["cleanup.policy"] == "compact"
        for change in ("delete", "compact,delete", "", None):
            code, message = await alter(peer, name, change)
            assert (code, name in message) == (ErrorCode.INVALID_CONFIG, True)
        assert await alter(peer, name, "compact") == (0, "")
        assert (await cut(peer, TO_THE_END, topic=name))[0] == ErrorCode.INVALID_TOPIC_EXCEPTION

    with_broker(scenario)


def test_it_is_the_number_that_there_is_that_counts(tmp_path: Path) -> None:
    """As in a directory that another broker made, with another number in its settings."""

    async def first(peer: Peer, node: Node) -> None:
        await make(peer, "__consumer_offsets", partitions=3)
        await coordinator(peer, "t")
        for offset, group in enumerate(GROUPS):
            assert await commit(peer, group, offset=offset) == 0

    async def again(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        assert [await committed(peer, group) for group in GROUPS] == list(range(len(GROUPS)))

    run_scenario(tmp_path, first, {"offsets.topic.num.partitions": "7"})
    for number in ("50", "1"):
        run_scenario(tmp_path, again, {"offsets.topic.num.partitions": number})
