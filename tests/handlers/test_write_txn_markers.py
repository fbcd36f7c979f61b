"""Tests WriteTxnMarkers: a marker ends a transaction, and read_committed consumers see all or nothing of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.replication.partition.txn_markers import MARKERS_A_TURN
from kpybroker.server.node import Node
from kpybroker.wire.rpc import list_offsets, write_txn_markers
from tests.asking import get, make, put, turns_while
from tests.conftest import WithBroker
from tests.handlers.test_describe_producers import producers
from tests.handlers.transacting import READ_COMMITTED, UNVERIFIED, committed, end, marker, write
from tests.serving import dialled, serving

pytestmark = pytest.mark.slow

FENCED = ErrorCode.TRANSACTION_COORDINATOR_FENCED
LATE = ErrorCode.INVALID_PRODUCER_EPOCH


async def latest(peer: Peer, isolation_level: int) -> int:
    row = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = list_offsets.ListOffsetsTopic(name="t", partitions=[row])
    request = list_offsets.Request(replica_id=-1, isolation_level=isolation_level, topics=[topic])
    told = await peer.ask("ListOffsets", request)
    return int(told.topics[0].partitions[0].offset)


def test_a_transaction_is_visible_completely_or_not_at_all(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await write(peer, 1, 0, b"a", b"b")
        await write(peer, 2, 0, b"c")
        await put(peer, "t", b"plain")
        assert await committed(peer) == []
        assert [await latest(peer, level) for level in (0, READ_COMMITTED)] == [4, 0]
        assert (await get(peer, "t", 0, isolation_level=READ_COMMITTED)).last_stable_offset == 0
        assert len((await get(peer, "t", 0)).records) > 0
        assert (await producers(peer))[1][1][-1] == 2, "where the transaction began"
        assert await end(peer, marker(2, commits=False)) == [[0]]
        assert await committed(peer) == [], "the first transaction is open"
        assert await end(peer, marker(1, commits=True)) == [[0]]
        assert await committed(peer) == [b"a", b"b", b"plain"]
        assert [await latest(peer, level) for level in (0, READ_COMMITTED)] == [6, 6]
        row = await get(peer, "t", 0, isolation_level=READ_COMMITTED)
        assert [(one.producer_id, one.first_offset) for one in row.aborted_transactions] == [(2, 2)]
        assert (await get(peer, "t", 0)).aborted_transactions is None
        assert (await get(peer, "t", 5, isolation_level=READ_COMMITTED)).aborted_transactions == []

    with_broker(scenario, UNVERIFIED)


def test_which_markers_are_fenced(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        assert (await write(peer, 1, 0, b"a", epoch=3)).error_code == 0
        assert await end(peer, marker(1, commits=True, epoch=2)) == [[LATE]]
        assert await end(peer, marker(1, commits=True, epoch=3, transaction_version=2)) == [[LATE]], "one before it"
        assert await end(peer, marker(1, commits=True, epoch=4, coordinator_epoch=7, transaction_version=2)) == [[0]]
        assert await end(peer, marker(1, commits=False, epoch=4, coordinator_epoch=7, transaction_version=2)) == [[0]]
        assert await end(peer, marker(1, commits=True, epoch=4, coordinator_epoch=6)) == [[FENCED]]
        assert (await write(peer, 1, 1, b"b", epoch=3)).error_code == LATE
        assert (await write(peer, 1, 1, b"b", epoch=4)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await write(peer, 1, 0, b"b", epoch=4)).error_code == 0
        assert await committed(peer) == [b"a"]

    with_broker(scenario, UNVERIFIED)


def test_each_partition_is_answered(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=2)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        asked = marker(1, commits=True, topics={"t": [0, 1, 2], "no": [0]})
        for version in (1, 2):
            assert await end(peer, asked, marker(-1, commits=True), version=version) == [
                [0, 0, missing, missing],
                [ErrorCode.UNKNOWN_SERVER_ERROR],
            ]

    with_broker(scenario, UNVERIFIED)


def test_many_markers_in_a_request_do_not_delay_others(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        places = {"t": [0] * 5 * MARKERS_A_TURN, "no": [0] * 5 * MARKERS_A_TURN}
        asked = write_txn_markers.Request(markers=[marker(1, commits=True, topics=places)])
        assert await turns_while(node.broker.coordinators.txn_markers.write(asked)) >= 10

    with_broker(scenario, UNVERIFIED)


def test_a_producer_outside_of_a_transaction_may_not_write_transactionally(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        nobodys = await write(peer, 1, 0, b"a", transactional_id=None)
        assert nobodys.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert (await write(peer, 1, 0, b"a")).error_code == 0
        nobodys = await write(peer, 1, 1, b"b", transactional_id=None)
        assert nobodys.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await latest(peer, 0) == 1

    with_broker(scenario, UNVERIFIED)


@pytest.mark.parametrize("seed", range(3))
def test_a_restart_changes_nothing(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    expected: dict[int, list[tuple[int, bytes]]] = {1: [], 2: [], 3: []}
    sequences = dict.fromkeys(expected, 0)
    said: list[tuple[int, bytes]] = []
    undecided: dict[int, int] = {}

    async def step(peer: Peer, number: int) -> None:
        producer = random.choice(list(expected))
        if undecided.get(producer) is not None and random.random() < 0.4:
            commits = random.random() < 0.5
            assert await end(peer, marker(producer, commits=commits)) == [[0]]
            said.extend(expected[producer] if commits else [])
            expected[producer].clear()
            del undecided[producer]
            return
        value = b"%d of %d" % (number, producer)
        told = await write(peer, producer, sequences[producer], value)
        assert told.error_code == 0
        sequences[producer] += 1
        undecided.setdefault(producer, told.base_offset)
        expected[producer].append((told.base_offset, value))

    async def check(peer: Peer) -> None:
        row = await get(peer, "t", 0, isolation_level=READ_COMMITTED)
        stable = min(undecided.values(), default=row.high_watermark)
        assert row.last_stable_offset == stable
        assert await committed(peer) == [value for at, value in sorted(said) if at < stable]

    async def whole() -> None:
        for life in range(4):
            async with serving(tmp_path / "data", UNVERIFIED) as node, dialled(node) as peer:
                if not life:
                    await make(peer, "t")
                await check(peer)
                for number in range(25):
                    await step(peer, number)
                    if random.random() < 0.2:
                        node.broker.replication.hosting.leads("t", 0).log.roll()
                await check(peer)

    asyncio.run(asyncio.wait_for(whole(), 60))
