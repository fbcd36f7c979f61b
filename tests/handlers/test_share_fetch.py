"""Tests ShareFetch over a socket: sessions, acquired records, waiting fetches, and the end of a connection."""

from __future__ import annotations

import asyncio

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.records.batch import split
from kpybroker.wire.rpc import update_features
from tests.conftest import WithBroker
from tests.handlers import transacting
from tests.handlers.sharing import (
    ACCEPT,
    AT_ONCE,
    RELEASE,
    RENEW,
    acknowledge,
    append,
    configure,
    described_offsets,
    fetch,
    joined,
    ranges,
    started,
    topic,
)

API = api_table.by_name["ShareFetch"]


async def another(node: Node) -> Peer:
    host, _, port = node.bootstrap.rpartition(":")
    return await Peer.dial(node.broker.world.network, host, int(port))


def test_every_version_acquires_and_acknowledges(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await topic(peer)
        for version in range(API.min, API.max + 1):
            group = f"g{version}"
            await configure(peer, group, auto_offset_reset="earliest")
            await joined(peer, group)
            told = await fetch(peer, topic_id, 0, group_id=group, version=version)
            assert ranges(told) == [(0, 19, 1)]
            assert [batch.base_offset for batch in split(told.responses[0].partitions[0].records)] == [0, 10]
            assert told.acquisition_lock_timeout_ms == 30_000
            told = await fetch(peer, topic_id, 1, (0, 19, ACCEPT), group_id=group, version=version, max_wait_ms=0)
            [row] = told.responses[0].partitions
            assert (row.acknowledge_error_code, ranges(told)) == (0, [])

    with_broker(scenario, AT_ONCE)


def test_a_fetch_waits_for_records(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        other = await another(node)
        assert ranges(await fetch(other, topic_id, 0)) == [(0, 19, 1)]
        waiting = asyncio.ensure_future(fetch(other, topic_id, 1, max_wait_ms=60_000))
        await asyncio.sleep(0)
        await append(peer, "t", 5)
        assert ranges(await waiting) == [(20, 24, 1)]

    with_broker(scenario, AT_ONCE)


def test_a_fetch_waits_for_what_another_releases(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        assert ranges(await fetch(peer, topic_id, 0)) == [(0, 19, 1)]
        other = await another(node)
        waiting = asyncio.ensure_future(fetch(other, topic_id, 0, member_id="n", max_wait_ms=60_000))
        await asyncio.sleep(0)
        await acknowledge(peer, topic_id, 1, (3, 4, RELEASE))
        assert ranges(await waiting) == [(3, 4, 2)]

    with_broker(scenario, AT_ONCE)


def test_released_records_are_offered_to_one_waiting_fetch_after_the_other(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        assert ranges(await fetch(peer, topic_id, 0)) == [(0, 19, 1)]
        others = [await another(node) for _ in range(3)]
        waiting = []
        for number, other in enumerate(others):
            # the second one waits for more bytes than there are
            least_bytes = 1 << 20 if number == 1 else 1
            asking = fetch(
                other,
                topic_id,
                0,
                member_id=f"n{number}",
                max_wait_ms=60_000,
                min_bytes=least_bytes,
                max_records=5,
                share_acquire_mode=1,
            )
            waiting.append(asyncio.ensure_future(asking))
            while len(node.broker.coordinators.share_leader.sessions) < number + 2:
                await asyncio.sleep(0)
        await acknowledge(peer, topic_id, 1, (0, 9, RELEASE))
        assert ranges(await waiting[0]) == [(0, 4, 2)]
        assert ranges(await waiting[2]) == [(5, 9, 2)]
        assert not waiting[1].done()
        waiting[1].cancel()

    with_broker(scenario, AT_ONCE)


def test_a_fetch_passes_over_aborted_records(with_broker: WithBroker) -> None:
    """A fetch reads about as much as it can acquire, and goes on if it acquires nothing."""

    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await topic(peer, batches=0)
        for sequence in range(5):
            await transacting.write(peer, 7, 100 * sequence, *[b"x" * 100] * 100)
        await transacting.end(peer, transacting.marker(7, commits=False))
        await append(peer, "t", 5)
        await configure(peer, "g", auto_offset_reset="earliest", isolation_level="read_committed")
        await joined(peer)
        told = await fetch(peer, topic_id, 0, max_wait_ms=60_000, max_records=10)
        assert ranges(told) == [(500, 505, 1)]

    with_broker(scenario, AT_ONCE | transacting.UNVERIFIED)


def test_a_fetch_with_many_bytes_to_wait_for_counts_those_it_does_not_acquire(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await topic(peer, batches=500)
        await configure(peer, "g", auto_offset_reset="earliest")
        await joined(peer)
        told = await fetch(peer, topic_id, 0, max_wait_ms=60_000, max_records=10, min_bytes=30_000)
        assert ranges(told) == [(0, 9, 1)]
        [row] = told.responses[0].partitions
        assert len(split(row.records)) == 1

    with_broker(scenario, AT_ONCE)


def test_a_session_ends_with_its_connection(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        other = await another(node)
        assert ranges(await fetch(other, topic_id, 0, member_id="n")) == [(0, 19, 1)]
        waiting = asyncio.ensure_future(fetch(peer, topic_id, 0, max_wait_ms=60_000))
        await asyncio.sleep(0)
        other.close()
        assert ranges(await waiting) == [(0, 19, 2)]
        assert (await fetch(peer, topic_id, 1, member_id="n")).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND

    with_broker(scenario, AT_ONCE)


@pytest.mark.slow
def test_a_lock_ends_by_itself(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer, record_lock_duration_ms=1_000)
        assert ranges(await fetch(peer, topic_id, 0)) == [(0, 19, 1)]
        assert ranges(await fetch(peer, topic_id, 1, max_wait_ms=60_000)) == [(0, 19, 2)]

    with_broker(scenario, AT_ONCE)


def test_a_parked_fetch_gives_way_to_what_is_behind_it(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        await fetch(peer, topic_id, 0)
        waiting = asyncio.ensure_future(fetch(peer, topic_id, 1, max_wait_ms=60_000))
        await asyncio.sleep(0)
        told = await acknowledge(peer, topic_id, 2, (0, 19, ACCEPT))
        assert (told.error_code, ranges(await waiting)) == (0, [])

    with_broker(scenario, AT_ONCE)


def test_epochs_count_fetches_and_acknowledgements(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        assert (await fetch(peer, topic_id, 1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (await fetch(peer, topic_id, 0, (0, 0, ACCEPT))).error_code == ErrorCode.INVALID_REQUEST
        await fetch(peer, topic_id, 0)
        await acknowledge(peer, topic_id, 1, (0, 0, ACCEPT))
        assert (await fetch(peer, topic_id, 1)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert (await fetch(peer, topic_id, 2, max_wait_ms=0)).error_code == 0
        assert (await fetch(peer, topic_id, -1, partitions=[])).error_code == 0
        assert (await fetch(peer, topic_id, -1, partitions=[])).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND

    with_broker(scenario, AT_ONCE)


def test_share_sessions_have_a_limit(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        others = [await another(node) for _ in range(3)]
        told = [await fetch(other, topic_id, 0, member_id=f"{at}", max_wait_ms=0) for at, other in enumerate(others)]
        assert [each.error_code for each in told] == [0, 0, ErrorCode.SHARE_SESSION_LIMIT_REACHED]
        again = await fetch(others[0], topic_id, 0, member_id="0", max_wait_ms=0)
        assert again.error_code == 0, "it takes its own place"

    limits = {"group.share.max.size": "2", "group.share.max.share.sessions": "2"}
    with_broker(scenario, {**AT_ONCE, **limits})


def test_records_in_flight_have_a_limit(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer, partition_max_record_locks=100)
        for _ in range(12):
            await append(peer, "t", 10)
        assert ranges(await fetch(peer, topic_id, 0)) == [(0, 99, 1)]
        assert ranges(await fetch(peer, topic_id, 1, max_wait_ms=0)) == []
        assert ranges(await fetch(peer, topic_id, 2, (0, 0, ACCEPT))) == [(100, 109, 1)]

    with_broker(scenario, AT_ONCE)


@pytest.mark.slow
def test_refusals_are_by_partition(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        told = await fetch(peer, topic_id, 0, partitions=[0, 7])
        assert {row.partition_index: row.error_code for row in told.responses[0].partitions} == {
            0: 0,
            7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        told = await fetch(peer, bytes(15) + b"\7", 0)
        assert told.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    with_broker(scenario, AT_ONCE)


def test_what_nobody_has_initialized_is_refused(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        told = await fetch(peer, await topic(peer), 0, group_id="never joined")
        assert told.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR

    with_broker(scenario, AT_ONCE)


def test_locks_are_renewed(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        await fetch(peer, topic_id, 0)
        renewing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0, "is_renew_ack": True}
        told = await fetch(peer, topic_id, 1, (0, 5, RENEW), **renewing)
        assert told.responses[0].partitions[0].acknowledge_error_code == 0
        assert (
            await fetch(peer, topic_id, 2, (0, 5, RENEW), is_renew_ack=True)
        ).error_code == ErrorCode.INVALID_REQUEST
        await configure(peer, "g", renew_acknowledge_enable="false")
        told = await fetch(peer, topic_id, 2, (0, 5, RENEW), **renewing)
        assert told.responses[0].partitions[0].acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE

    with_broker(scenario, AT_ONCE)


def test_latest_begins_behind_what_is_there(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await topic(peer)
        await joined(peer)
        assert ranges(await fetch(peer, topic_id, 0, max_wait_ms=0)) == []
        while (await described_offsets(peer, "g"))["t", 0].start_offset != 20:
            pass
        await append(peer, "t", 1)
        assert ranges(await fetch(peer, topic_id, 1)) == [(20, 20, 1)]

    with_broker(scenario, AT_ONCE)


def test_without_the_feature_share_groups_are_not_served(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        off = update_features.FeatureUpdateKey(feature="share.version", max_version_level=0, upgrade_type=2)
        assert (await peer.ask("UpdateFeatures", update_features.Request(feature_updates=[off]))).error_code == 0
        assert (await fetch(peer, topic_id, 0)).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (await acknowledge(peer, topic_id, 1)).error_code == ErrorCode.UNSUPPORTED_VERSION

    with_broker(scenario, AT_ONCE)
