"""Helpers for a transactional producer without a coordinator, on a broker that does not verify transactions."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.wire.records.batch import read_records, split
from kpybroker.wire.rpc import write_txn_markers as rpc
from tests.asking import batch_of, get, produced

UNVERIFIED = {"transaction.partition.verification.enable": "false"}
READ_COMMITTED = 1


async def write(peer: Peer, producer_id: int, sequence: int, *values: bytes, epoch: int = 0, **facts: Any) -> Any:
    """Produce within a transaction. Returns the row of the only partition."""
    facts = {"topic": "t", "index": 0, "transactional_id": f"id {producer_id}", "version": 11, **facts}
    records = batch_of(
        *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )
    request = produced(facts["topic"], index=facts["index"], acks=-1, records=records)
    request.transactional_id = facts["transactional_id"]
    told = await peer.ask("Produce", request, version=facts["version"])
    return told.responses[0].partition_responses[0]


def marker(producer_id: int, *, commits: bool, epoch: int = 0, coordinator_epoch: int = 0, **facts: Any) -> Any:
    topics = facts.pop("topics", {"t": [0]})
    return rpc.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commits,
        coordinator_epoch=coordinator_epoch,
        topics=[rpc.WritableTxnMarkerTopic(name=name, partition_indexes=found) for name, found in topics.items()],
        **facts,
    )


async def end(peer: Peer, *markers: Any, version: int = 2) -> list[list[int]]:
    """End the transaction. Returns the error codes by marker and partition."""
    told = await peer.ask("WriteTxnMarkers", rpc.Request(markers=list(markers)), version=version)
    return [[row.error_code for topic in one.topics for row in topic.partitions] for one in told.markers]


async def committed(peer: Peer, topic: str = "t", offset: int = 0) -> list[bytes]:
    """All records that a read_committed consumer delivers, filtered as clients do."""
    found: list[bytes] = []
    while True:
        row = await get(peer, topic, offset, isolation_level=READ_COMMITTED)
        batches = split(bytearray(row.records)) if row.records else []
        if not batches:
            assert offset == row.last_stable_offset, "the position must advance over hidden records"
            return found
        aborted = [(one.first_offset, one.producer_id) for one in row.aborted_transactions]
        assert aborted == sorted(aborted)
        dropping = set()
        for batch in batches:
            while aborted and aborted[0][0] <= batch.last_offset:
                dropping.add(aborted.pop(0)[1])
            if batch.is_control:
                dropping.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in dropping):
                found += [record.value or b"" for record in read_records(batch) if record.offset >= offset]
        assert not aborted, "aborted transactions after the records must not be returned"
        offset = batches[-1].next_offset
