"""Tests that no request can hide the state of coordinators or make it expire."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpybroker.client.peer import Peer
from kpybroker.controller.internal_topics import KEPT_BY
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.serving.produce.validation import REPLAYED_LIMIT_BYTES
from kpybroker.wire import api as api_table
from kpybroker.wire.frame import encode_request
from kpybroker.wire.records.batch import encode_batch, split
from kpybroker.wire.records.compression import Codec
from kpybroker.wire.rpc import create_partitions, create_topics, incremental_alter_configs, init_producer_id
from tests.asking import NOW_MS, make, produced
from tests.conftest import WithBroker
from tests.handlers.grouping import commit, committed, coordinator
from tests.handlers.test_create_partitions import grow
from tests.handlers.test_create_topics import topic
from tests.handlers.test_delete_records import TO_THE_END, cut
from tests.server.raw import raw
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


def test_adding_partitions_is_refused_and_every_commit_is_found(with_broker: WithBroker) -> None:
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
            assert len(node.broker.metadata.image.topics[name].partitions) == 3

    with_broker(scenario)


@pytest.mark.parametrize("name", COORDINATORS)
def test_their_cleanup_policy_stays(with_broker: WithBroker, name: str) -> None:
    only = KEPT_BY[name]["cleanup.policy"]
    wrong = "delete" if only == "compact" else "compact"

    async def scenario(peer: Peer, node: Node) -> None:
        for policy in (wrong, "compact,delete", ""):
            asked = create_topics.Request(topics=[topic(name, 3, **{"cleanup.policy": policy})])
            (told,) = (await peer.ask("CreateTopics", asked)).topics
            assert told.error_code == ErrorCode.INVALID_CONFIG
        await make(peer, name, partitions=3)
        assert node.broker.metadata.image.config(TOPIC, name)["cleanup.policy"] == only
        for change in (wrong, "compact,delete", "", *([None] if only == "compact" else [])):
            code, message = await alter(peer, name, change)
            assert (code, name in message) == (ErrorCode.INVALID_CONFIG, True)
        assert await alter(peer, name, only) == (0, "")
        assert (await cut(peer, TO_THE_END, topic=name))[0] == ErrorCode.INVALID_TOPIC_EXCEPTION

    with_broker(scenario)


def test_the_actual_number_of_partitions_counts(tmp_path: Path) -> None:
    """The directory is from another broker with a different number in its settings."""

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


ADMIN = "__admin_client"
JUNK = [
    ("__consumer_offsets", b"\0\1\0\5ab", b"\0\3"),
    ("__consumer_offsets", b"\0\1\0\1g\0\1t\0\0\0\0", b"\xff\xfejunk"),
    ("__consumer_offsets", b"\0\2\0\1g", b"\0\3\xff\xff\xff\xff\xff"),
    ("__consumer_offsets", b"\0\3\0\1g", b"\0\0\xff\xff\xff"),
    ("__transaction_state", b"\0\0\0\1x", b"\xff\xffjunk"),
]
HARMLESS = [(b"\x7f\xff", b"of a kind that is not known"), (b"\0\2\0\1g", None), (b"\0", b"v")]


async def put_as_admin(node: Node, name: str, records: bytes, acks: int = 1) -> tuple[int, list[int]]:
    """Produce to an internal topic as an admin. Returns the error code, and the indexes of the invalid records."""
    row = api_table.by_name["Produce"]
    async with raw(node) as other:
        other.send(b"".join(encode_request(1, row, 9, produced(name, records=records, acks=acks), ADMIN)))
        (told,) = (await other.answer("Produce", 9))[1].responses[0].partition_responses
    return told.error_code, [each.batch_index for each in told.record_errors]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize(("name", "key", "value"), JUNK)
def test_records_that_a_coordinator_could_not_replay_are_refused(
    with_broker: WithBroker, name: str, key: bytes, value: bytes, codec: Codec
) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, name, partitions=1)
        log = node.broker.replication.hosting.leads(name, 0).log
        rows = [(b"\x7f\xff", b"v"), (key, value)]
        sent = bytes(encode_batch(rows, timestamp_ms=NOW_MS, codec=codec))
        assert await put_as_admin(node, name, sent) == (ErrorCode.INVALID_RECORD, [1])
        assert log.end == 0
        some = HARMLESS if name == "__consumer_offsets" else HARMLESS[:1]
        good = bytes(encode_batch(some, timestamp_ms=NOW_MS, codec=codec))
        assert await put_as_admin(node, name, good) == (0, [])
        assert log.end == len(some)

    with_broker(scenario)


def test_records_of_a_coordinators_topic_have_a_size_limit(with_broker: WithBroker) -> None:
    """Coordinators read a record as a whole."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "__consumer_offsets", partitions=1)
        for size, code in ((REPLAYED_LIMIT_BYTES - 20, 0), (REPLAYED_LIMIT_BYTES, ErrorCode.MESSAGE_TOO_LARGE)):
            sent = bytes(encode_batch([(b"\x7f\xff", bytes(size))], timestamp_ms=NOW_MS, codec=Codec.ZSTD))
            assert await put_as_admin(node, "__consumer_offsets", sent) == (code, [])

    with_broker(scenario)


def test_a_directory_with_such_records_is_served(tmp_path: Path) -> None:
    """Apache Kafka accepts such records from clients, so its directories may contain them."""

    async def first(peer: Peer, node: Node) -> None:
        await make(peer, "__consumer_offsets")
        await make(peer, "__transaction_state")
        await coordinator(peer, "t")
        assert await commit(peer, "g", offset=5) == 0
        for name, key, value in JUNK:
            partition = node.broker.replication.hosting.leads(name, 0)
            partition.append(split(encode_batch([(key, value)], timestamp_ms=NOW_MS)), NOW_MS, client=False)
            partition.flush()
        assert await commit(peer, "h", offset=6) == 0

    async def again(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        assert (await committed(peer, "g"), await committed(peer, "h")) == (5, 6)
        assert await commit(peer, "g", offset=7) == 0
        asked = init_producer_id.Request(transactional_id="x", transaction_timeout_ms=5000)
        assert (await peer.ask("InitProducerId", asked)).error_code == 0

    settings = {"offsets.topic.num.partitions": "1"}
    run_scenario(tmp_path, first, settings)
    run_scenario(tmp_path, again, settings)
