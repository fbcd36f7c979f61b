"""Transactions (KIP-98) of the command line: records, and the offsets of a group, that take effect together or never.

The versions of the requests are those before KIP-890: partitions and groups are added explicitly, and the producer
epoch changes only at the start. All brokers since 0.11 serve them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kpybroker.client.client import Client, check
from kpybroker.client.coordinators import OF_GROUPS, OF_TRANSACTIONS, coordinator
from kpybroker.wire.rpc import add_offsets_to_txn, add_partitions_to_txn, end_txn, init_producer_id, txn_offset_commit

TIMEOUT_MS = 60_000
"""After this time, the coordinator aborts a transaction whose producer was killed."""
VERSIONS_MAX = {
    "InitProducerId": 5,
    "AddPartitionsToTxn": 3,
    "AddOffsetsToTxn": 3,
    "Produce": 11,
    "TxnOffsetCommit": 4,
    "EndTxn": 4,
}


class Transactions:
    """The transactions of one transactional id, one after the other. Each call raises KafkaError, OSError.

    A transaction begins with the first call after `start` or `end`. If another producer starts with the same id, all
    further calls raise PRODUCER_FENCED or INVALID_PRODUCER_EPOCH.
    """

    def __init__(self, client: Client, transactional_id: str) -> None:
        self._client = client
        self.transactional_id = transactional_id
        self.producer = (-1, -1)
        """Producer id and epoch."""

    async def start(self) -> None:
        """Fence earlier producers, and wait until their last transaction has ended."""
        request = init_producer_id.Request(transactional_id=self.transactional_id, transaction_timeout_ms=TIMEOUT_MS)
        told = await self._ask("InitProducerId", request)
        self.producer = told.producer_id, told.producer_epoch

    async def add_partitions(self, topic: str, partitions: Iterable[int]) -> None:
        """Add partitions, before records are sent to them."""
        rows = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=topic, partitions=sorted(partitions))]
        producer_id, producer_epoch = self.producer
        request = add_partitions_to_txn.Request(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=producer_epoch,
            v3_and_below_topics=rows,
        )
        await self._ask("AddPartitionsToTxn", request)

    async def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, tuple[int, str]]) -> None:
        """Commit offsets with metadata, by partition, for a group without members."""
        await self._ask("AddOffsetsToTxn", self._filled(add_offsets_to_txn.Request(group_id=group)))
        rows = [
            txn_offset_commit.TxnOffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=metadata
            )
            for partition, (offset, metadata) in sorted(offsets.items())
        ]
        request = txn_offset_commit.Request(
            group_id=group, topics=[txn_offset_commit.TxnOffsetCommitRequestTopic(name=topic, partitions=rows)]
        )
        await self._ask("TxnOffsetCommit", self._filled(request), group)

    async def end(self, *, commits: bool) -> None:
        """Commit or abort."""
        await self._ask("EndTxn", self._filled(end_txn.Request(committed=commits)))

    def _filled(self, request: Any) -> Any:
        request.transactional_id = self.transactional_id
        request.producer_id, request.producer_epoch = self.producer
        return request

    async def _ask(self, name: str, request: Any, group: str | None = None) -> Any:
        """The response of the coordinator of `group`, or else of the transaction. All these requests may be sent again
        after a lost connection."""
        who, kind = (self.transactional_id, OF_TRANSACTIONS) if group is None else (group, OF_GROUPS)

        async def attempt() -> Any:
            node = await coordinator(self._client, who, kind)
            told = await self._client.ask(name, request, node=node, at_most=VERSIONS_MAX[name])
            for code in _codes(told):
                check(code, f"{name} for {who}")
            return told

        return await self._client.patiently(attempt)


def _codes(told: Any) -> Iterable[int]:
    """The error codes of a response."""
    if isinstance(told, add_partitions_to_txn.Response):
        rows = told.results_by_topic_v3_and_below
        return (each.partition_error_code for row in rows for each in row.results_by_partition)
    if isinstance(told, txn_offset_commit.Response):
        return (each.error_code for row in told.topics for each in row.partitions)
    return (told.error_code,)
