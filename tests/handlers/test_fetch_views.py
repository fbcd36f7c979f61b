"""Tests that a Fetch of a view returns the matching records of its source, and that positions advance past all others.

The law: what a consumer of the view receives are the records that a consumer of the source receives and that match.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.replication.partition import stretches
from kpybroker.server.node import Node
from kpybroker.serving.fetch import filtered
from kpybroker.serving.fetch.scan import CHUNK_BYTES
from kpybroker.storage.log.log import Log
from kpybroker.wire import api as api_table
from kpybroker.wire.records.batch import Record, encode_batch, split
from kpybroker.wire.records.compression import Codec
from kpybroker.wire.rpc import delete_topics
from tests.asking import make
from tests.conftest import WithBroker
from tests.handlers.beginning import add, begin, coordinator, end, settled
from tests.handlers.fetching import asking, rows, want
from tests.handlers.viewing import READ_COMMITTED, Reader, make_view, send
from tests.holding import Held, held
from tests.serving import dialled
from tests.wire.expressions import Told, expressions, records

ROW = api_table.by_name["Fetch"]
TAGGED = 'tag == "a"'
TAG_A, TAG_B = (("tag", b"a"),), (("tag", b"b"),)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """It keeps even the shortest stretches without a match."""
    with pytest.MonkeyPatch.context() as patch, held(tmp_path_factory.mktemp("views")) as it:
        patch.setattr(stretches, "STRETCH_MIN_BYTES", 1)
        it.run(coordinator(it.peer))
        yield it


codecs = st.sampled_from(list(Codec))
ABORTED, COMMITTED = "abort", "commit"
endings = st.sampled_from(["", "", COMMITTED, ABORTED])
KEY_A: Told = ('key == "a"', lambda record: record.key == b"a")
keyed = st.builds(lambda key: Record(0, 1000, key, b"v"), st.sampled_from([b"a", b"b", b"b"]))
stored = st.one_of(st.lists(keyed, min_size=1, max_size=2), st.lists(keyed, min_size=1, max_size=5))
cases = st.one_of(
    st.tuples(st.just(KEY_A), st.lists(st.tuples(stored, codecs, endings), min_size=3, max_size=10)),
    st.tuples(
        expressions,
        st.lists(st.tuples(st.lists(records, min_size=1, max_size=6), codecs, endings), min_size=1, max_size=4),
    ),
)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_view_has_the_matching_records_of_its_source(broker: Held, data: st.DataObject) -> None:
    told, batches = data.draw(cases)
    version = data.draw(st.integers(ROW.min, ROW.max))
    facts = {
        "isolation_level": data.draw(st.sampled_from([0, READ_COMMITTED, READ_COMMITTED])),
        "partition_bytes": data.draw(st.sampled_from([1, 200, 1 << 20])),
        "max_bytes": data.draw(st.sampled_from([1, 200, 1 << 20])),
    }
    broker.run(_law(broker.peer, told, batches, version, facts))


async def _law(peer: Peer, told: Told, batches: list[Any], version: int, facts: dict[str, Any]) -> None:
    topic_id = await make(peer, "t")
    try:
        view_id = await make_view(peer, "v", told[0])
        for found, codec, ending in batches:
            if not ending:
                await send(peer, bytes(encode_batch(found, codec=codec)))
                continue
            who = await begin(peer)
            assert await add(peer, who, 0) == [0]
            batch = encode_batch(
                found, codec=codec, producer_id=who[0], producer_epoch=who[1], base_sequence=0, transactional=True
            )
            await send(peer, bytes(batch), transactional_id="x")
            assert (await end(peer, who, ending == COMMITTED)).error_code == 0
            await settled(peer)
        source = Reader(peer, "t", topic_id, version, isolation_level=facts["isolation_level"])
        row = await source.fetch()
        every = await source.read_to(row.high_watermark)
        for _ in range(3):  # the second one passes over the stretches that the first one has found
            view = Reader(peer, "v", view_id, version, **facts)
            assert await view.read_to(source.position) == [record for record in every if told[1](record)]
            facts["partition_bytes"] = facts["max_bytes"] = 1 << 20
        last = await view.fetch()
        assert (last.high_watermark, last.last_stable_offset, bytes(last.records)) == (
            row.high_watermark, row.last_stable_offset, b"",
        )  # fmt: skip
    finally:
        gone = delete_topics.Request(topic_names=["t"], timeout_ms=5000)
        assert (await peer.ask("DeleteTopics", gone, version=5)).responses[0].error_code == 0


def batch(*tags: tuple[tuple[str, bytes], ...], value: bytes = b"v", **facts: Any) -> bytes:
    return bytes(encode_batch([Record(0, 1000, b"k", value, headers) for headers in tags], **facts))


def test_batches_are_sent_as_stored_narrowed_or_left_out(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        view_id = await make_view(peer, "v", TAGGED)
        for stored in (batch(TAG_A, TAG_A), batch(TAG_B), batch(TAG_B, TAG_A, TAG_B, codec=Codec.LZ4), batch(TAG_B)):
            await send(peer, stored)
        row = await Reader(peer, "v", view_id, ROW.max).fetch()
        assert [(each.base_offset, each.last_offset, each.record_count) for each in split(bytearray(row.records))] == [
            (0, 1, 2),
            (3, 5, 1),
            (6, 6, 0),
        ]

    with_broker(scenario)


def test_a_waiting_fetch_is_woken_by_a_match_alone(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        view_id = await make_view(peer, "v", TAGGED)
        async with dialled(node) as other:
            waiting = asyncio.ensure_future(Reader(other, "v", view_id, ROW.max, max_wait_ms=30_000).fetch())
            for _ in range(5):
                await send(peer, batch(TAG_B))
                await peer.ask("Fetch", asking("t", bytes(16), want(0, 0)), version=12)
            assert not waiting.done()
            await send(peer, batch(TAG_A))
            row = await waiting
        assert [each.base_offset for each in split(bytearray(row.records))] == [5]

    with_broker(scenario)


def test_without_a_match_the_position_advances_when_the_wait_is_over(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        view_id = await make_view(peer, "v", TAGGED)
        for _ in range(3):
            await send(peer, batch(TAG_B))
        reader = Reader(peer, "v", view_id, ROW.max, max_wait_ms=1)
        await reader.fetch()
        assert (reader.position, reader.records, reader.fetches) == (3, [], 1)

    with_broker(scenario)


def test_a_long_stretch_without_a_match_is_read_in_bounded_parts(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtered, "READ_MAX_BYTES", 2 * CHUNK_BYTES)

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        view_id = await make_view(peer, "v", TAGGED)
        for _ in range(10):
            await send(peer, batch(TAG_B, value=bytes(CHUNK_BYTES // 2 + 1000)))
        await send(peer, batch(TAG_A))
        reader = Reader(peer, "v", view_id, ROW.max, max_wait_ms=60_000)
        assert [record.offset for record in await reader.read_to(11)] == [10]
        assert 2 < reader.fetches < 10
        assert reader.received_bytes < 1000

    with_broker(scenario)


def test_a_stretch_without_a_match_is_read_once_for_all_consumers(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    read_log = Log.read

    def counted(*asked: Any, **facts: Any) -> Any:
        found = read_log(*asked, **facts)
        read.append(len(found or b""))
        return found

    monkeypatch.setattr(Log, "read", counted)

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        views = [await make_view(peer, name, TAGGED) for name in ("v", "w")]
        for _ in range(8):
            await send(peer, batch(TAG_B, value=bytes(CHUNK_BYTES // 4)))
        await send(peer, batch(TAG_A))
        for name, view_id in zip(("v", "w"), views, strict=True):
            reader = Reader(peer, name, view_id, ROW.max, max_wait_ms=60_000)
            assert [record.offset for record in await reader.read_to(9)] == [8]
        assert 2 * CHUNK_BYTES < sum(read) < 3 * CHUNK_BYTES

    with_broker(scenario)


def test_one_fetch_reads_a_topic_and_a_view_in_a_session(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        view_id = await make_view(peer, "v", TAGGED)
        first = asking("t", topic_id, want(0, 0), session_epoch=0, max_wait_ms=1)
        first.topics += asking("v", view_id, want(0, 0)).topics
        told = await peer.ask("Fetch", first)
        assert told.session_id
        await send(peer, batch(TAG_B))
        await send(peer, batch(TAG_A))
        again = asking("t", topic_id, session_id=told.session_id, session_epoch=1, max_wait_ms=30_000)
        told = await peer.ask("Fetch", again)
        found = {topic.topic_id: split(bytearray(topic.partitions[0].records)) for topic in told.responses}
        assert [each.base_offset for each in found[topic_id]] == [0, 1]
        assert [each.base_offset for each in found[view_id]] == [1]

    with_broker(scenario)


def test_a_session_never_reads_the_source_under_the_name_of_a_deleted_view(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        view_id = await make_view(peer, "v", TAGGED)
        await send(peer, batch(TAG_B))
        told = await peer.ask("Fetch", asking("v", view_id, want(0, 0), session_epoch=0))
        gone = delete_topics.Request(topics=[delete_topics.DeleteTopicState(topic_id=view_id)], timeout_ms=5000)
        assert (await peer.ask("DeleteTopics", gone)).responses[0].error_code == 0
        again = asking("v", view_id, want(0, 0), session_id=told.session_id, session_epoch=1)
        row = rows(await peer.ask("Fetch", again))[0]
        assert (row.error_code, bytes(row.records)) == (ErrorCode.UNKNOWN_TOPIC_ID, b"")

    with_broker(scenario)


def test_a_view_of_a_scheduled_topic_shows_records_when_they_are_delivered(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs={"kpybroker.delivery.scheduled": "true"})
        view_id = await make_view(peer, "v", 'tag == "a" and exists header.deliver-accepted')
        async with dialled(node) as other:
            waiting = asyncio.ensure_future(Reader(other, "v", view_id, ROW.max, max_wait_ms=30_000).fetch())
            await send(peer, batch((*TAG_A, ("deliver-after", b"300ms")), (*TAG_B, ("deliver-after", b"1ms"))))
            row = await waiting
        assert [(each.record_count, each.base_offset) for each in split(bytearray(row.records))] == [(1, 3)]

    with_broker(scenario)


def test_offsets_outside_the_source_are_refused(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        view_id = await make_view(peer, "v", TAGGED)
        for offset, index, code in (
            (1, 0, ErrorCode.OFFSET_OUT_OF_RANGE),
            (-1, 0, ErrorCode.OFFSET_OUT_OF_RANGE),
            (0, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            row = rows(await peer.ask("Fetch", asking("v", view_id, want(index, offset))))[index]
            assert row.error_code == code
        stale = rows(await peer.ask("Fetch", asking("v", view_id, want(0, 0, epoch=7))))[0]
        assert stale.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    with_broker(scenario)


def test_a_changed_expression_applies_to_a_fetch_that_waits(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        from kpybroker.config.resource_type import ResourceType
        from kpybroker.wire.rpc import incremental_alter_configs as alter

        await make(peer, "t")
        view_id = await make_view(peer, "v", TAGGED)
        await send(peer, batch(TAG_B))
        async with dialled(node) as other:
            waiting = asyncio.ensure_future(Reader(other, "v", view_id, ROW.max, max_wait_ms=30_000).fetch())
            await peer.ask("Fetch", asking("t", bytes(16), want(0, 0)), version=12)
            change = alter.AlterableConfig(name="kpybroker.view.where", config_operation=0, value='tag == "b"')
            resource = alter.AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name="v", configs=[change])
            told = await peer.ask("IncrementalAlterConfigs", alter.Request(resources=[resource]))
            assert told.responses[0].error_code == 0
            await send(peer, batch(TAG_A))
            row = await waiting
        assert [each.base_offset for each in split(bytearray(row.records)) if each.record_count] == [0]

    with_broker(scenario)


def test_a_view_of_a_large_compressed_batch(with_broker: WithBroker) -> None:
    """It is decompressed on another thread, and its records are searched over several turns."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs={"max.message.bytes": str(20 << 20)})
        view_id = await make_view(peer, "v", 'tag == "a" or not exists tag')
        none: tuple[tuple[str, bytes], ...] = ()
        found = [Record(0, at, b"%d" % at, bytes(1000), (TAG_A, TAG_B, none)[at % 3]) for at in range(6000)]
        for codec in Codec:
            await send(peer, bytes(encode_batch(found, codec=codec)))
        reader = Reader(peer, "v", view_id, ROW.max, max_bytes=64 << 20, partition_bytes=64 << 20)
        every = await reader.read_to(len(Codec) * len(found))
        assert [record.offset for record in every] == [
            at for at in range(len(Codec) * len(found)) if at % len(found) % 3 != 1
        ]

    with_broker(scenario)


def test_an_expression_of_a_newer_version_hides_the_view_alone(tmp_path: Path, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        view_id = await make_view(peer, "v", TAGGED)
        image = node.broker.metadata.image
        newer = image.views["v"]._replace(where="header.region ~ eu").record()
        node.broker.publish(image, image.apply([newer], image.offset, image.epoch))
        request = asking("t", topic_id, want(0, 0))
        request.topics += asking("v", view_id, want(0, 0)).topics
        told = await peer.ask("Fetch", request)
        codes = {topic.topic_id: topic.partitions[0].error_code for topic in told.responses}
        assert codes == {topic_id: 0, view_id: ErrorCode.UNKNOWN_SERVER_ERROR}

    with_broker(scenario)
