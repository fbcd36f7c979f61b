"""Helpers that send a transactional producer's requests to its coordinator over a socket."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc import (
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    find_coordinator,
    init_producer_id,
)

TRANSACTION = 1
Who = tuple[int, int]
"""A producer id and an epoch."""


async def coordinator(peer: Peer, name: str = "x") -> None:
    """Find the coordinator, which creates the topic that stores its state."""
    told = await peer.ask("FindCoordinator", find_coordinator.Request(key_type=TRANSACTION, coordinator_keys=[name]))
    assert told.coordinators[0].error_code == 0, told


async def init(peer: Peer, name: str = "x", *, version: int = 5, timeout_ms: int = 60_000, was: Who = (-1, -1)) -> Any:
    """The response to an InitProducerId."""
    request = init_producer_id.Request(
        transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=was[0], producer_epoch=was[1]
    )
    return await peer.ask("InitProducerId", request, version=version)


async def begin(peer: Peer, name: str = "x", timeout_ms: int = 60_000) -> Who:
    """Initialize a producer once its previous transaction has ended. Returns its id and epoch."""
    while True:
        told = await init(peer, name, timeout_ms=timeout_ms)
        if told.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
            assert told.error_code == 0, told
            return told.producer_id, told.producer_epoch


async def add(peer: Peer, who: Who, *indexes: int, name: str = "x", topic: str = "t", version: int = 3) -> list[int]:
    """Add partitions like a client of transaction version 1. Returns the error codes."""
    wanted = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))]
    request = add_partitions_to_txn.Request(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=who[0],
        v3_and_below_producer_epoch=who[1],
        v3_and_below_topics=wanted,
    )
    told = await peer.ask("AddPartitionsToTxn", request, version=version)
    return [
        row.partition_error_code for found in told.results_by_topic_v3_and_below for row in found.results_by_partition
    ]


async def end(peer: Peer, who: Who, commit: bool, *, name: str = "x", version: int = 4) -> Any:
    """The response to an EndTxn."""
    request = end_txn.Request(transactional_id=name, producer_id=who[0], producer_epoch=who[1], committed=commit)
    return await peer.ask("EndTxn", request, version=version)


async def described(peer: Peer, name: str = "x") -> Any:
    """The state of the transaction."""
    told = await peer.ask("DescribeTransactions", describe_transactions.Request(transactional_ids=[name]))
    return told.transaction_states[0]


async def settled(peer: Peer, name: str = "x") -> Any:
    """The state of the transaction once every partition has its marker."""
    while (found := await described(peer, name)).transaction_state.startswith("Prepare"):
        pass
    return found
