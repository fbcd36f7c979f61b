"""Tests that Fetch returns whole batches, in order, within limits, at every version."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import delete_records, delete_topics
from kpybroker.wire.rpc.fetch import ForgottenTopic
from tests.asking import batch_of, get, make, put
from tests.conftest import WithBroker
from tests.handlers.fetching import Consumer, asking, rows, values, want
from tests.holding import Held, held
from tests.serving import dialled

ROW = api_table.by_name["Fetch"]
UNKNOWN_ID = bytes(range(16))
FIRST_SESSIONS = 7
LEADER_EPOCHS = 9
TOPIC_IDS = 13


async def one(peer: Peer, version: int, topic_id: bytes, offset: int, **facts: Any) -> Any:
    """The row of partition 0 of the topic t."""
    epoch = facts.pop("epoch", -1)
    max_bytes = facts.pop("partition_bytes", 1 << 20)
    request = asking("t", topic_id, want(0, offset, epoch=epoch, max_bytes=max_bytes), **facts)
    return rows(await peer.ask("Fetch", request, version=version))[0]


async def cut_to(peer: Peer, topic: str, offset: int) -> None:
    cut = delete_records.DeleteRecordsPartition(partition_index=0, offset=offset)
    asked = delete_records.Request(topics=[delete_records.DeleteRecordsTopic(name=topic, partitions=[cut])])
    assert (await peer.ask("DeleteRecords", asked)).topics[0].partitions[0].error_code == 0


def test_every_version_returns_the_bytes_that_were_produced(with_broker: WithBroker) -> None:
    first, second = batch_of(b"a", b"b", b"c"), batch_of(b"d", b"e")

    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        for records in (first, second):
            assert (await put(peer, "t", records=records)).error_code == 0
        for version in range(ROW.min, ROW.max + 1):
            row = await one(peer, version, topic_id, 0)
            assert (row.error_code, row.high_watermark, row.last_stable_offset) == (0, 5, 5)
            assert row.log_start_offset == (0 if version >= 5 else -1)
            assert row.aborted_transactions is None
            told = bytes(row.records)
            # The bytes under the CRC are unchanged; base offset, size, leader epoch and magic come before it.
            assert told[17 : len(first)] == first[17:]
            assert told[len(first) + 17 :] == second[17:]
            assert values(row) == [(at, value.encode()) for at, value in enumerate("abcde")]
            inside = await one(peer, version, topic_id, 4)
            assert [at for at, _ in values(inside)] == [3, 4], (
                "for an offset inside a batch, the whole batch is returned"
            )
            stable = await one(peer, version, topic_id, 0, isolation_level=1)
            assert bytes(stable.records) == told
            assert stable.aborted_transactions == []
            at_end = await one(peer, version, topic_id, 5)
            assert (at_end.error_code, bytes(at_end.records)) == (0, b"")

    with_broker(scenario)


def test_refusals_at_every_version(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        await put(peer, "t", b"a")
        await put(peer, "t", b"b")
        await cut_to(peer, "t", 1)
        for version in range(ROW.min, ROW.max + 1):
            for offset in (0, 3):
                row = await one(peer, version, topic_id, offset)
                assert (row.error_code, bytes(row.records)) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
            absent = rows(await peer.ask("Fetch", asking("no", UNKNOWN_ID, want(0, 0)), version=version))[0]
            by_id = version >= TOPIC_IDS
            assert absent.error_code == (ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            no_partition = rows(await peer.ask("Fetch", asking("t", topic_id, want(7, 0)), version=version))[7]
            assert no_partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if version >= LEADER_EPOCHS:
                assert (await one(peer, version, topic_id, 1, epoch=9)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
                assert (await one(peer, version, topic_id, 1, epoch=0)).error_code == 0

    with_broker(scenario)


def test_an_epoch_of_the_past_is_fenced(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        node.broker.replication.hosting.leads("t", 0).leader_epoch = 3
        assert (await one(peer, 12, topic_id, 0, epoch=2)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await one(peer, 12, topic_id, 0, epoch=3)).error_code == 0

    with_broker(scenario)


def test_a_recreated_topic_is_not_served_under_the_old_id(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        old = await make(peer, "t")
        await put(peer, "t", b"old")
        by_id, by_name = (Consumer(peer, "t", old, version) for version in (ROW.max, TOPIC_IDS - 1))
        for consumer in (by_id, by_name):
            consumer.subscribe(0)
            assert await consumer.fetch(1000) == 1
        gone = delete_topics.Request(topics=[delete_topics.DeleteTopicState(name="t")])
        assert (await peer.ask("DeleteTopics", gone)).responses[0].error_code == 0
        new = await make(peer, "t")
        assert new != old
        await put(peer, "t", b"new", b"er")
        for version in range(TOPIC_IDS, ROW.max + 1):
            assert (await one(peer, version, old, 0)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
            assert values(await one(peer, version, new, 0)) == [(0, b"new"), (1, b"er")]
        goes_on = asking("t", old, session_id=by_id.session_id, session_epoch=by_id.epoch)
        told = rows(await peer.ask("Fetch", goes_on, version=ROW.max))
        assert told[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert await by_name.fetch(1000) == 1, "the name refers to the new topic"

    with_broker(scenario)


def test_limits_bound_the_response_but_the_first_batch_always_fits(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t", partitions=3)
        size = len(batch_of(b"x" * 1000))
        for index in range(3):
            for _ in range(4):
                await put(peer, "t", b"x" * 1000, index=index)
        wants = [want(index, 0) for index in range(3)]
        tiny = rows(await peer.ask("Fetch", asking("t", topic_id, *wants, max_bytes=1), version=18))
        assert [len(row.records) for row in tiny.values()] == [size, 0, 0]
        half = rows(await peer.ask("Fetch", asking("t", topic_id, *wants, max_bytes=6 * size), version=18))
        assert [len(row.records) for row in half.values()] == [4 * size, 2 * size, 0]
        each = [want(index, 0, max_bytes=2 * size) for index in range(3)]
        fair = rows(await peer.ask("Fetch", asking("t", topic_id, *each), version=18))
        assert [len(row.records) for row in fair.values()] == [2 * size] * 3
        narrow = [want(index, 0, max_bytes=1) for index in range(3)]
        first = rows(await peer.ask("Fetch", asking("t", topic_id, *narrow), version=18))
        assert [len(row.records) for row in first.values()] == [size, 0, 0]

    with_broker(scenario)


def test_consumers_see_committed_and_stable_records(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        for value in (b"a", b"b", b"c"):
            await put(peer, "t", value)
        storage = node.broker.replication.hosting.leads("t", 0).log
        storage.high_watermark, storage.last_stable = 2, 1  # as with a slow follower and an open transaction
        for isolation, seen in ((0, [0, 1]), (1, [0])):
            row = await one(peer, 18, topic_id, 0, isolation_level=isolation)
            assert (row.high_watermark, row.last_stable_offset) == (2, 1)
            assert [at for at, _ in values(row)] == seen
            assert (await one(peer, 18, topic_id, 3, isolation_level=isolation)).error_code == 0, "not out of range"
        storage.high_watermark = storage.last_stable = 3

    with_broker(scenario)


def test_the_brokers_own_limit_holds_too(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        for _ in range(4):
            await put(peer, "t", b"x" * 1000)
        assert 0 < len((await one(peer, 18, topic_id, 0)).records) <= 2500

    with_broker(scenario, {"fetch.max.bytes": "2500"})


def test_a_fetch_waits_for_min_bytes(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        size = len(batch_of(b"a"))
        loop = asyncio.get_running_loop()
        async with dialled(node) as other:
            began = loop.time()
            assert bytes((await one(other, 18, topic_id, 0, max_wait_ms=60)).records) == b""
            assert loop.time() - began >= 0.055, "without new records, it waits for the whole time"
            parked = asyncio.ensure_future(one(other, 18, topic_id, 0, max_wait_ms=30_000, min_bytes=2 * size))
            await put(peer, "t", b"a")
            assert values(await one(peer, 18, topic_id, 0, max_wait_ms=30_000)) == [(0, b"a")]
            assert not parked.done(), "one batch is less than min_bytes"
            await put(peer, "t", b"b")
            assert values(await parked) == [(0, b"a"), (1, b"b")]
            refused = await one(other, 18, topic_id, 99, max_wait_ms=30_000)
            assert refused.error_code == ErrorCode.OFFSET_OUT_OF_RANGE, "after an error, it does not wait"
            partition = node.broker.replication.hosting.leads("t", 0)
            assert not partition.fetches, "a completed fetch does not wait any longer"

    with_broker(scenario)


def test_a_waiting_fetch_is_answered_when_its_topic_is_deleted(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        async with dialled(node) as other:
            parked = asyncio.ensure_future(one(other, 18, topic_id, 0, max_wait_ms=30_000))
            partition = node.broker.replication.hosting.leads("t", 0)
            while not partition.fetches:
                await asyncio.sleep(0)
            gone = delete_topics.Request(topics=[delete_topics.DeleteTopicState(name="t")])
            await peer.ask("DeleteTopics", gone)
            assert (await parked).error_code == ErrorCode.UNKNOWN_TOPIC_ID

    with_broker(scenario)


@pytest.mark.parametrize("version", [FIRST_SESSIONS, TOPIC_IDS - 1, TOPIC_IDS, ROW.max])
def test_a_session_returns_only_what_changed(version: int, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t", partitions=3)

        async def go_on(epoch: int, *wants: Any, session: int = -1) -> Any:
            request = asking(
                "t", topic_id, *wants, session_id=opened.session_id if session < 0 else session, session_epoch=epoch
            )
            return await peer.ask("Fetch", request, version=version)

        all_three = asking("t", topic_id, *(want(i, 0) for i in range(3)), session_epoch=0)
        opened = await peer.ask("Fetch", all_three, version=version)
        assert opened.session_id > 0
        assert list(rows(opened)) == [0, 1, 2], "the first response has all partitions"
        assert rows(await go_on(1)) == {}
        await put(peer, "t", b"a", index=1)
        news = await go_on(2)
        assert (news.session_id, list(rows(news))) == (opened.session_id, [1])
        assert list(rows(await go_on(3))) == [1], "records after the consumer's position are returned again"
        assert rows(await go_on(4, want(1, 1))) == {}
        assert (await go_on(4)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert (await go_on(6)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert (await go_on(5)).error_code == 0, "a refused request does not advance the session"
        unknown = await go_on(1, session=opened.session_id ^ 1)
        assert (unknown.error_code, unknown.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
        await put(peer, "t", b"b", index=2)
        forgets = asking("t", topic_id, session_id=opened.session_id, session_epoch=6)
        forgets.forgotten_topics_data = [ForgottenTopic(topic="t", topic_id=topic_id, partitions=[2])]
        assert rows(await peer.ask("Fetch", forgets, version=version)) == {}
        closing = await go_on(-1)
        assert (closing.error_code, closing.session_id) == (0, 0)
        assert (await go_on(7)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    with_broker(scenario)


def test_a_session_does_not_change_between_names_and_ids(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        opened = await peer.ask("Fetch", asking("t", topic_id, want(0, 0), session_epoch=0), version=12)
        goes_on = asking("t", topic_id, session_id=opened.session_id, session_epoch=1)
        told = await peer.ask("Fetch", goes_on, version=13)
        assert told.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR

    with_broker(scenario)


def test_without_a_free_slot_a_fetch_has_no_session(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        ids = []
        for _ in range(3):
            opened = await peer.ask("Fetch", asking("t", topic_id, want(0, 0), session_epoch=0), version=18)
            assert (opened.error_code, len(opened.responses)) == (0, 1)
            ids.append(opened.session_id)
        assert [one > 0 for one in ids] == [True, True, False]
        for epoch in (1, 2):
            for one in ids[:2]:
                goes_on = asking("t", topic_id, session_id=one, session_epoch=epoch)
                assert (await peer.ask("Fetch", goes_on, version=18)).error_code == 0

    with_broker(scenario, {"max.incremental.fetch.session.cache.slots": "2"})


def test_a_replicas_session_is_not_a_consumers(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t")
        for replica_id, other_id in ((-1, 2), (2, -1)):
            asked = asking("t", topic_id, want(0, 0), session_epoch=0)
            asked.replica_id = replica_id
            opened = await peer.ask("Fetch", asked, version=12)
            goes_on = asking("t", topic_id, session_id=opened.session_id, session_epoch=1)
            goes_on.replica_id = other_id
            told = await peer.ask("Fetch", goes_on, version=12)
            assert told.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            goes_on.replica_id = replica_id
            assert (await peer.ask("Fetch", goes_on, version=12)).error_code == 0

    with_broker(scenario)


def test_every_partition_gets_its_turn_under_a_small_limit(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await make(peer, "t", partitions=5)
        for index in range(5):
            for _ in range(6):
                await put(peer, "t", b"x" * 100, index=index)
        consumer = Consumer(peer, "t", topic_id, 18)
        for index in range(5):
            consumer.subscribe(index)
        for turn in range(1, 7):
            for _ in range(5):
                assert await consumer.fetch(1) == 1
            assert [len(consumer.delivered[index]) for index in range(5)] == [turn] * 5

    with_broker(scenario)


ACTIONS = st.one_of(
    st.tuples(st.just("produce"), st.integers(0, 3), st.integers(1, 4)),
    st.tuples(st.just("fetch"), st.sampled_from([1, 200, 5000]), st.integers(1, 3)),
    st.tuples(st.just("subscribe"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("unsubscribe"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("the session ends"), st.just(0), st.just(0)),
)


def test_a_consumer_that_follows_the_protocol_gets_every_record_once_and_in_order(tmp_path: Path) -> None:
    """This holds for any sequence of produces, fetches, subscriptions and removed partitions, even if the session is
    lost."""
    numbers = iter(range(1_000_000))
    with held(tmp_path / "data") as broker:

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        @given(history=st.lists(ACTIONS, max_size=25), version=st.sampled_from([7, 12, 13, 18]))
        def law(history: list[tuple[str, int, int]], version: int) -> None:
            broker.run(live(broker, f"t{next(numbers)}", history, version))

        law()


async def live(broker: Held, topic: str, history: list[tuple[str, int, int]], version: int) -> None:
    peer = broker.peer
    topic_id = await make(peer, topic, partitions=4)
    consumer = Consumer(peer, topic, topic_id, version)
    produced: dict[int, list[bytes]] = {index: [] for index in range(4)}
    for action, what, count in history:
        if action == "produce":
            batch = [b"%d-%d" % (what, len(produced[what]) + n) for n in range(count)]
            produced[what] += batch
            assert (await put(peer, topic, *batch, index=what)).error_code == 0
        elif action == "fetch":
            for _ in range(count):
                await consumer.fetch(what)
        elif action == "subscribe":
            consumer.subscribe(what)
        elif action == "unsubscribe":
            consumer.unsubscribe(what)
        else:
            ends = asking(topic, topic_id, want(0, 0), session_id=consumer.session_id, session_epoch=-1)
            await peer.ask("Fetch", ends, version=version)
    for index in range(4):
        consumer.subscribe(index)
    while any(len(consumer.delivered[index]) < len(produced[index]) for index in range(4)):
        lost = consumer.lost
        assert await consumer.fetch(1) or consumer.lost == lost + 1, "while there are records, every fetch returns some"
    assert consumer.delivered == produced
    row = await get(peer, topic, 0)
    assert [value for _, value in values(row)] == produced[0]
