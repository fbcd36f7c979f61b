"""Requests of transactional producers, before and since KIP-890, and clients that write transactions."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from kpybroker.errors import ErrorCode
from kpybroker.sim.clients.classic_members import ClassicMembership
from kpybroker.sim.clients.client import TRANSACTION, Refused, SimClient, Unanswered
from kpybroker.sim.world.history import Sent, SentTransaction
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    produce,
    txn_offset_commit,
)

PRODUCE_LIMIT_MS = 5000
ATTEMPTS_MAX = 12
"""After this number of failures of one step, a client gives up the transaction."""
TIMEOUTS_MS = (2000, 6000)
GONE_S = (0.5, 0.5, 8.0)
"""The time until a dead client is replaced: too short to be noticed, or longer than the transaction timeout."""
VANISHING_ODDS = 0.04
"""The probability that a client dies between two steps."""
ABORT_ODDS = 0.2
SLOWS_AFTER = 200
"""After this number of records, a transactor pauses twice as long between transactions, and so on."""
DUPLICATE = int(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
FATAL = frozenset(
    int(code)
    for code in (
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
    )
)
"""Errors after which the transaction cannot commit. Other errors are retried."""


class TransactionProtocol(NamedTuple):
    """A version of the transaction protocol, with the versions of its requests; None is the highest version."""

    produce: int | None
    end: int
    offsets: int
    adds_partitions: bool
    """Whether clients send AddPartitionsToTxn and AddOffsetsToTxn; if not, the leaders do (KIP-890)."""


TV1 = TransactionProtocol(produce=11, end=4, offsets=4, adds_partitions=True)
TV2 = TransactionProtocol(produce=None, end=5, offsets=5, adds_partitions=False)


class ClientDied(Exception):
    """The client died in the middle of a transaction without aborting it, and another client replaces it."""


class TransactionalSession:
    """One producer with a transactional id, from its InitProducerId onwards. All steps raise Unanswered, Refused,
    ClientDied."""

    def __init__(self, client: SimClient, transactional_id: str, protocol: TransactionProtocol) -> None:
        self._client = client
        self.transactional_id = transactional_id
        self._protocol = protocol
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[Any] = set()
        self.transaction = SentTransaction(client.name)

    # ---- steps

    async def begin(self) -> None:
        """Send InitProducerId, which fences earlier producers with this transactional id."""
        client = self._client
        request = init_producer_id.Request(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=client.random.choice(TIMEOUTS_MS),
        )
        response = await self._insist("InitProducerId", request, None)
        client.history.producer_id(self.transactional_id, response.producer_id)
        client.history.incarnation(response.producer_id, response.producer_epoch)
        self._go_on_as(response.producer_id, response.producer_epoch)
        client.note(f"is producer {response.producer_id} in epoch {response.producer_epoch}")

    async def write(self, place: TopicPartition, sents: list[Sent]) -> None:
        """Send one batch, and retry until it is acknowledged."""
        client = self._client
        self.transaction.add(sents)
        for sent in sents:
            client.history.sends(client.name, sent)
        if self._protocol.adds_partitions and place not in self._added:
            await self._add_partition(place)
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(sents)
        batch = encode_batch(
            [sent.stored for sent in sents],
            timestamp_ms=client.wall_ms(),
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            transactional=True,
        )
        for attempt in range(ATTEMPTS_MAX):
            self._may_vanish()
            try:
                row = await self._produce(place, bytes(batch))
                break
            except (Unanswered, Refused) as failed:
                await self._after(failed, attempt)
                client.forget_topic(place[0])
        for number, sent in enumerate(sents):
            known = row.base_offset >= 0 and not row.error_code
            client.history.acked(sent, row.base_offset + number if known else -1)

    async def commit_offset(self, membership: ClassicMembership, place: TopicPartition, offset: int) -> None:
        """Add an offset commit to the transaction; the coordinator checks the membership (KIP-447)."""
        group = membership.group
        if self._protocol.adds_partitions and group not in self._added:
            request = add_offsets_to_txn.Request(
                transactional_id=self.transactional_id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                group_id=group,
            )
            await self._insist("AddOffsetsToTxn", request, None)
            self._added.add(group)
        partition = txn_offset_commit.TxnOffsetCommitRequestPartition(partition_index=place[1], committed_offset=offset)
        asked = txn_offset_commit.Request(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            generation_id=membership.generation,
            member_id=membership.member_id,
            group_instance_id=membership.instance_id,
            topics=[txn_offset_commit.TxnOffsetCommitRequestTopic(name=place[0], partitions=[partition])],
        )
        for attempt in range(ATTEMPTS_MAX):
            self._may_vanish()
            try:
                node_id = await self._client.coordinator(group)
                response = await self._client.ask(node_id, "TxnOffsetCommit", asked, version=self._protocol.offsets)
                _check(response.topics[0].partitions[0].error_code)
                return
            except (Unanswered, Refused) as failed:
                await self._after(failed, attempt)
                self._client.forget_coordinator(group)

    async def end(self, *, commit: bool) -> None:
        """Commit or abort. Adds the known part of the outcome to the history, even if this raises."""
        client, transaction = self._client, self.transaction
        transaction.ask(commit=commit)
        request = end_txn.Request(
            transactional_id=self.transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=commit,
        )
        is_doubtful = False
        for attempt in range(ATTEMPTS_MAX):
            self._may_vanish()
            try:
                response = await self._ask("EndTxn", request, self._protocol.end)
                break
            except (Unanswered, Refused) as failed:
                if isinstance(failed, Refused) and failed.code in FATAL:
                    transaction.decide(None if is_doubtful else False)
                is_doubtful = True
                await self._after(failed, attempt)
        transaction.decide(commit)
        client.history.count("transactions committed" if commit else "transactions aborted")
        self.transaction = SentTransaction(client.name)
        self._added.clear()
        if self._protocol is TV2:
            self._go_on_as(response.producer_id, response.producer_epoch)

    # ---- helpers

    def _go_on_as(self, producer_id: int, epoch: int) -> None:
        self._producer_id, self._epoch = producer_id, epoch
        self._sequences.clear()

    def _may_vanish(self) -> None:
        if self._client.random.random() < VANISHING_ODDS:
            self._client.note(f"dies as {self.transactional_id}")
            raise ClientDied

    async def _after(self, failed: Unanswered | Refused, attempt: int) -> None:
        """Wait before the next attempt, or raise `failed` if there is none."""
        if attempt == ATTEMPTS_MAX - 1 or (isinstance(failed, Refused) and failed.code in FATAL):
            raise failed
        await self._client.nap(0.5)

    async def _add_partition(self, place: TopicPartition) -> None:
        topic = add_partitions_to_txn.AddPartitionsToTxnTopic(name=place[0], partitions=[place[1]])
        request = add_partitions_to_txn.Request(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[topic],
        )
        await self._insist("AddPartitionsToTxn", request, 3)
        self._added.add(place)

    async def _insist(self, name: str, request: Any, version: int | None) -> Any:
        """Send the request to the coordinator until it succeeds."""
        for attempt in range(ATTEMPTS_MAX):
            self._may_vanish()
            try:
                return await self._ask(name, request, version)
            except (Unanswered, Refused) as failed:
                await self._after(failed, attempt)
        raise AssertionError("the last attempt raises")

    async def _ask(self, name: str, request: Any, version: int | None) -> Any:
        client = self._client
        try:
            node_id = await client.coordinator(self.transactional_id, TRANSACTION)
            response = await client.ask(node_id, name, request, version=version)
            code = response.error_code
            if name == "AddPartitionsToTxn":
                code = response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            _check(code)
        except (Unanswered, Refused):
            client.forget_coordinator(self.transactional_id, TRANSACTION)
            raise
        return response

    async def _produce(self, place: TopicPartition, batch: bytes) -> Any:
        client, (name, index) = self._client, place
        node_id, _, topic_id = await client.leader(name, index)
        data: Any = produce.PartitionProduceData(index=index, records=batch)
        topic = produce.TopicProduceData(name=name, topic_id=topic_id, partition_data=[data])
        request = produce.Request(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=PRODUCE_LIMIT_MS, topic_data=[topic]
        )
        response = await client.ask(node_id, "Produce", request, version=self._protocol.produce)
        row = response.responses[0].partition_responses[0]
        if row.error_code != DUPLICATE:
            _check(row.error_code)
        return row


def _check(code: int) -> None:
    if code:
        raise Refused(code)


class Transactor:
    """Writes transactions over several partitions. Another transactor may have the same transactional id."""

    def __init__(
        self,
        client: SimClient,
        transactional_id: str,
        places: list[TopicPartition],
        *,
        pace_s: float,
        delays_ms: tuple[int | None, ...] = (),
    ) -> None:
        """`delays_ms`: each record is scheduled after one of them, or not (None)."""
        self._delays_ms = delays_ms
        self._client = client
        self._transactional_id = transactional_id
        self._places = places
        self._pace_s = pace_s
        self._number = 0

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            session = TransactionalSession(client, self._transactional_id, client.random.choice((TV1, TV2)))
            try:
                await session.begin()
                while not client.stopping:
                    await self._transaction(session)
                    client.succeeded()
                    if client.random.random() < 0.1:
                        break
                    await client.nap(self._pace_s * (1 + self._number / SLOWS_AFTER))
            except (Unanswered, Refused) as failed:
                client.note(f"gives up a transaction: {failed}")
                await client.nap(1.0)
            except ClientDied:
                await client.nap(client.random.choice(GONE_S))

    async def _transaction(self, session: TransactionalSession) -> None:
        """Write one transaction. Raises Unanswered, Refused, ClientDied."""
        client = self._client
        client.history.transactions.append(session.transaction)
        for _ in range(client.random.randint(1, 4)):
            values = [self._value() for _ in range(client.random.choice((1, 1, 3)))]
            place = client.random.choice(self._places)
            await session.write(place, [self._sent(value, place) for value in values])
            if client.random.random() < 0.2:
                await asyncio.sleep(client.random.random() * 2)
        await session.end(commit=client.random.random() >= ABORT_ODDS)

    def _sent(self, value: bytes, place: TopicPartition) -> Sent:
        sent = Sent(value, place, -1, True)
        delay_ms = self._client.random.choice(self._delays_ms) if self._delays_ms else None
        if delay_ms is not None:
            sent.schedule(self._client.wall_ms() + delay_ms)
        return sent

    def _value(self) -> bytes:
        self._number += 1
        return b"%s/%d" % (self._client.name.encode(), self._number)
