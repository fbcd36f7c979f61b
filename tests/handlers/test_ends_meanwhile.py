"""Tests verifications that become invalid because a transaction ends while the coordinator is queried about the next
one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.topics import OFFSETS_TOPIC
from tests.asking import make
from tests.conftest import WithBroker
from tests.handlers import test_txn_offset_commit as offsets
from tests.handlers.beginning import add, begin, coordinator, end, settled
from tests.handlers.transacting import committed, write
from tests.serving import dialled

PATIENT = {"add.partitions.to.txn.retry.backoff.max.ms": "60000"}
"""A timeout that is so long that the request always waits for the end of the previous transaction."""


def zero(who: tuple[int, int]) -> tuple[int, int]:
    """The producer id, and the first sequence of an epoch."""
    return who[0], 0


def hold_markers(node: Node) -> Callable[[], None]:
    """Hold back markers until the returned function is called."""
    markers, held = node.broker.coordinators.transactions.markers, []
    send = markers.send
    markers.send = lambda *sent: held.append(sent)  # type: ignore[method-assign]  # as if they were delayed

    def release() -> None:
        markers.send = send  # type: ignore[method-assign]
        for sent in held:
            send(*sent)

    return release


async def is_asking(node: Node, place: tuple[str, int], producer_id: int) -> None:
    """Wait until a verification of the partition is in progress."""
    while node.broker.replication.hosting.leads(*place).log.producers.verifications.get(producer_id) is None:
        await asyncio.sleep(0)


def test_a_verification_is_repeated_for_records_of_the_next_transaction(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await coordinator(peer)
        who = await begin(peer)
        assert (await write(peer, *zero(who), b"1", epoch=who[1], transactional_id="x", version=12)).error_code == 0
        release = hold_markers(node)
        ended = await end(peer, who, True, version=5)
        who = ended.producer_id, ended.producer_epoch
        async with dialled(node) as other:
            told = asyncio.create_task(write(other, *zero(who), b"2", epoch=who[1], transactional_id="x", version=12))
            await is_asking(node, ("t", 0), who[0])
            release()
            assert (await told).error_code == 0
        assert (await end(peer, who, True, version=5)).error_code == 0
        await settled(peer)
        assert await committed(peer) == [b"1", b"2"]

    with_broker(scenario, PATIENT)


def test_a_verification_is_repeated_for_an_offset_of_the_next_transaction(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await offsets.prepared(peer)
        who = await begin(peer)
        assert await offsets.commit(peer, who, 1) == 0
        release = hold_markers(node)
        ended = await end(peer, who, True, version=5)
        who = ended.producer_id, ended.producer_epoch
        async with dialled(node) as other:
            told = asyncio.create_task(offsets.commit(other, who, 2))
            await is_asking(node, (OFFSETS_TOPIC, 0), who[0])
            release()
            assert await told == 0
        assert (await end(peer, who, True, version=5)).error_code == 0
        assert await offsets.stable(peer) == 2

    with_broker(scenario, offsets.ONE | PATIENT)


def test_a_late_record_of_transaction_version_1_does_not_join_the_next_transaction(with_broker: WithBroker) -> None:
    """Both transactions have the same epoch, so the verification is not repeated, although the next transaction also
    has the partition."""

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await coordinator(peer)
        who = await begin(peer)
        assert await add(peer, who, 0) == [0]
        is_decided, is_answered = asyncio.Event(), asyncio.Event()
        client = node.broker.coordinators.transactions_client
        verify = client.verify

        async def late(*asked: Any, **facts: Any) -> Any:
            told = await verify(*asked, **facts)
            is_decided.set()
            await is_answered.wait()
            return told

        client.verify = late  # type: ignore[method-assign]  # as if the response were delayed
        async with dialled(node) as other:
            told = asyncio.create_task(write(other, *zero(who), b"late", epoch=who[1], transactional_id="x"))
            await is_decided.wait()
            assert (await end(peer, who, False, version=4)).error_code == 0
            await settled(peer)
            assert await add(peer, who, 0) == [0]
            is_answered.set()
            assert (await told).error_code == ErrorCode.INVALID_TXN_STATE
        assert (await end(peer, who, True, version=4)).error_code == 0
        await settled(peer)
        assert await committed(peer) == []

    with_broker(scenario)
