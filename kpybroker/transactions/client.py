"""Verifies transactions: a leader that receives records of a transaction queries the coordinator, on any broker."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kpybroker.client.broker_connections import LOST, BrokerConnections
from kpybroker.config import BrokerConfig
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.topics import TRANSACTION_TOPIC, TopicPartition
from kpybroker.transactions.commands import AddPartitions, Verify
from kpybroker.transactions.coordinator import TransactionCoordinator
from kpybroker.transactions.transaction import V2
from kpybroker.wire.rpc import add_partitions_to_txn

QUESTIONS_A_REQUEST = 500
WAITING_MAX = 10_000
"""The most queries that wait for one broker. Further queries are refused."""

Told = dict[TopicPartition, ErrorCode]


class Question(NamedTuple):
    """A query about one transaction, and the requests that wait for its result."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    places: Sequence[TopicPartition]
    add: bool
    answer: asyncio.Future[Told]


class TransactionsClient:
    """Sends the queries. Partitions call `verify` before they accept records of a transaction."""

    def __init__(
        self,
        node_id: int,
        config: Callable[[], BrokerConfig],
        image: Callable[[], Image],
        coordinator: TransactionCoordinator,
        connections: BrokerConnections,
    ) -> None:
        self._node_id = node_id
        self._config = config
        self._image = image
        self._coordinator = coordinator
        self._connections = connections
        self._waiting: defaultdict[int, deque[Question]] = defaultdict(deque)
        self._asking: dict[int, asyncio.Task[None]] = {}

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Told:
        """An error code for each partition, which is NONE if it belongs to the transaction. With `add`, it is added
        first.

        Other codes come from the coordinator: TRANSACTION_ABORTABLE (the partition does not belong to it),
        INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, and NETWORK_EXCEPTION if its response was lost.

        An addition waits for the end of the previous transaction, at most add.partitions.to.txn.retry.backoff.max.ms.
        """
        config, loop = self._config(), asyncio.get_running_loop()
        give_up = loop.time() + config.add_partitions_to_txn_retry_backoff_max_ms / 1000
        while True:
            told = await self._ask(transactional_id, producer_id, producer_epoch, partitions, add)
            pause_s = config.add_partitions_to_txn_retry_backoff_ms / 1000
            is_early = add and ErrorCode.CONCURRENT_TRANSACTIONS in told.values()
            if not is_early or loop.time() + pause_s > give_up:
                return told
            await asyncio.sleep(pause_s)

    async def _ask(
        self, transactional_id: str, producer_id: int, producer_epoch: int, places: Sequence[TopicPartition], add: bool
    ) -> Told:
        topic = self._image().topic(TRANSACTION_TOPIC)
        leader = -1
        if topic is not None and transactional_id:
            leader = topic.partitions[self._coordinator.partition_for(transactional_id)].leader
        if leader == self._node_id or not transactional_id:
            return await self.answer(transactional_id, producer_id, producer_epoch, places, add=add)
        if leader < 0 or len(self._waiting[leader]) >= WAITING_MAX:
            return dict.fromkeys(places, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        answer: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._waiting[leader].append(
            Question(transactional_id, producer_id, producer_epoch, tuple(places), add, answer)
        )
        if leader not in self._asking:
            self._asking[leader] = asyncio.get_running_loop().create_task(self._ask_all(leader))
        return await answer

    async def answer(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        places: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> Told:
        """The result from this broker's own coordinator."""
        timeout_ms = self._config().request_timeout_ms
        try:
            if add:
                await self._coordinator.add(
                    AddPartitions(transactional_id, producer_id, producer_epoch, places, V2), timeout_ms
                )
                missing: list[TopicPartition] = []
            else:
                verify = Verify(transactional_id, producer_id, producer_epoch, places)
                missing = await self._coordinator.missing(verify, timeout_ms)
        except KafkaError as refusal:
            return dict.fromkeys(places, refusal.code)
        told = dict.fromkeys(places, ErrorCode.NONE)
        told.update(dict.fromkeys(missing, ErrorCode.TRANSACTION_ABORTABLE))
        return told

    async def _ask_all(self, node_id: int) -> None:
        waiting = self._waiting[node_id]
        try:
            while waiting:
                count = min(len(waiting), QUESTIONS_A_REQUEST)
                await self._ask_broker(node_id, [waiting.popleft() for _ in range(count)])
        finally:
            del self._asking[node_id]
            while waiting:  # the broker stops
                _settle(waiting.popleft(), {}, ErrorCode.NETWORK_EXCEPTION)

    async def _ask_broker(self, node_id: int, asked: list[Question]) -> None:
        """Send at most one query for each transactional id, because the response identifies queries by this id. The
        other queries wait."""
        first: dict[str, Question] = {}
        for question in asked:
            if question.transactional_id in first:
                self._waiting[node_id].append(question)
            else:
                first[question.transactional_id] = question
        request = add_partitions_to_txn.Request(transactions=[_transaction(each) for each in first.values()])
        code = ErrorCode.NETWORK_EXCEPTION
        found: dict[str, Told] = {}
        try:
            timeout_ms = self._config().request_timeout_ms
            told = await self._connections.ask(node_id, "AddPartitionsToTxn", request, timeout_ms)
            code = ErrorCode(told.error_code) if told.error_code else ErrorCode.NETWORK_EXCEPTION
            found = {
                result.transactional_id: {
                    (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
                    for topic in result.topic_results
                    for each in topic.results_by_partition
                }
                for result in told.results_by_transaction
            }
        except LOST:
            pass
        finally:
            for question in first.values():
                _settle(question, found.get(question.transactional_id, {}), code)

    def close(self) -> None:
        """Complete all waiting requests, because the broker stops."""
        for task in self._asking.values():
            task.cancel()


def _transaction(question: Question) -> add_partitions_to_txn.AddPartitionsToTxnTransaction:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in question.places:
        topics[topic].append(index)
    return add_partitions_to_txn.AddPartitionsToTxnTransaction(
        transactional_id=question.transactional_id,
        producer_id=question.producer_id,
        producer_epoch=question.producer_epoch,
        verify_only=not question.add,
        topics=[
            add_partitions_to_txn.AddPartitionsToTxnTopic(name=name, partitions=indexes)
            for name, indexes in topics.items()
        ],
    )


def _settle(question: Question, told: Told, otherwise: ErrorCode) -> None:
    if not question.answer.done():
        question.answer.set_result({place: told.get(place, otherwise) for place in question.places})
