"""Transactions: what their producers say, in both generations of the protocol, and those who write with them."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from kpybroker.errors import ErrorCode
from kpybroker.sim.clients.classic_members import Membership
from kpybroker.sim.clients.client import TRANSACTION, Client, Refused, Unanswered
from kpybroker.sim.world.history import Place, Sent, Transaction
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
"""After so many failures of one step a transaction is given up."""
TIMEOUTS_MS = (2000, 6000)
GONE_S = (0.5, 0.5, 8.0)
"""How long a client that died is away: not noticed, or longer than a transaction may take."""
VANISHING_ODDS = 0.04
"""How often a client dies between two steps."""
ABORT_ODDS = 0.2
TIRES_AFTER = 200
"""Records, after which a transactor takes twice the time for the next transaction, and so on."""
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
"""This transaction will not be committed; others are worth another attempt."""


class Generation(NamedTuple):
    """A generation of the protocol: versions of requests, None for the highest, and whether clients announce."""

    produce: int | None
    end: int
    offsets: int
    announces: bool
    """What will be written to is told to the coordinator first; else whoever takes the records does (KIP-890)."""


FIRST = Generation(produce=11, end=4, offsets=4, announces=True)
SECOND = Generation(produce=None, end=5, offsets=5, announces=False)


class Ended(Exception):
    """The client is gone in the middle of it: nothing is cleared up, and somebody takes its place."""


class Session:
    """One incarnation of a transactional id, from its InitProducerId on. Its steps raise Unanswered, Refused, Ended."""

    def __init__(self, client: Client, transactional_id: str, generation: Generation) -> None:
        self._client = client
        self.transactional_id = transactional_id
        self._generation = generation
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[Place, int] = {}
        self._announced: set[Any] = set()
        self.transaction = Transaction(client.name)

    # ---- steps

    async def begin(self) -> None:
        """Whoever had this transactional id before is fenced off."""
        client = self._client
        request = init_producer_id.Request(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=client.random.choice(TIMEOUTS_MS),
        )
        told = await self._insist("InitProducerId", request, None)
        client.history.producer_id(self.transactional_id, told.producer_id)
        client.history.incarnation(told.producer_id, told.producer_epoch)
        self._go_on_as(told.producer_id, told.producer_epoch)
        client.note(f"is producer {told.producer_id} in epoch {told.producer_epoch}")

    async def write(self, place: Place, sents: list[Sent]) -> None:
        """One batch, sent again until it is there."""
        client = self._client
        self.transaction.records += sents
        for sent in sents:
            sent.transaction = self.transaction
            client.history.sends(client.name, sent)
        if self._generation.announces and place not in self._announced:
            await self._announce(place)
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

    async def commit_offset(self, membership: Membership, place: Place, offset: int) -> None:
        """An offset that counts once the transaction is committed; of a member, if it still is one (KIP-447)."""
        group = membership.group
        if self._generation.announces and group not in self._announced:
            request = add_offsets_to_txn.Request(
                transactional_id=self.transactional_id,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                group_id=group,
            )
            await self._insist("AddOffsetsToTxn", request, None)
            self._announced.add(group)
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
                told = await self._client.ask(node_id, "TxnOffsetCommit", asked, version=self._generation.offsets)
                _check(told.topics[0].partitions[0].error_code)
                return
            except (Unanswered, Refused) as failed:
                await self._after(failed, attempt)
                self._client.forget_coordinator(group)

    async def end(self, *, commit: bool) -> None:
        """Commit or abort. What is known of the outcome is in the history, whatever is raised."""
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
                told = await self._ask("EndTxn", request, self._generation.end)
                break
            except (Unanswered, Refused) as failed:
                if isinstance(failed, Refused) and failed.code in FATAL:
                    transaction.decide(None if is_doubtful else False)
                is_doubtful = True
                await self._after(failed, attempt)
        transaction.decide(commit)
        client.history.count("transactions committed" if commit else "transactions aborted")
        self.transaction = Transaction(client.name)
        self._announced.clear()
        if self._generation is SECOND:
            self._go_on_as(told.producer_id, told.producer_epoch)

    # ---- how

    def _go_on_as(self, producer_id: int, epoch: int) -> None:
        self._producer_id, self._epoch = producer_id, epoch
        self._sequences.clear()

    def _may_vanish(self) -> None:
        if self._client.random.random() < VANISHING_ODDS:
            self._client.note(f"vanishes as {self.transactional_id}")
            raise Ended

    async def _after(self, failed: Unanswered | Refused, attempt: int) -> None:
        """Before the next attempt; raises what failed where there is none."""
        if attempt == ATTEMPTS_MAX - 1 or (isinstance(failed, Refused) and failed.code in FATAL):
            raise failed
        await self._client.nap(0.5)

    async def _announce(self, place: Place) -> None:
        topic = add_partitions_to_txn.AddPartitionsToTxnTopic(name=place[0], partitions=[place[1]])
        request = add_partitions_to_txn.Request(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[topic],
        )
        await self._insist("AddPartitionsToTxn", request, 3)
        self._announced.add(place)

    async def _insist(self, name: str, request: Any, version: int | None) -> Any:
        """Ask the coordinator until it agrees."""
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
            told = await client.ask(node_id, name, request, version=version)
            code = told.error_code
            if name == "AddPartitionsToTxn":
                code = told.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            _check(code)
        except (Unanswered, Refused):
            client.forget_coordinator(self.transactional_id, TRANSACTION)
            raise
        return told

    async def _produce(self, place: Place, batch: bytes) -> Any:
        client, (name, index) = self._client, place
        node_id, _, topic_id = await client.leader(name, index)
        data: Any = produce.PartitionProduceData(index=index, records=batch)
        topic = produce.TopicProduceData(name=name, topic_id=topic_id, partition_data=[data])
        request = produce.Request(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=PRODUCE_LIMIT_MS, topic_data=[topic]
        )
        told = await client.ask(node_id, "Produce", request, version=self._generation.produce)
        row = told.responses[0].partition_responses[0]
        if row.error_code != DUPLICATE:
            _check(row.error_code)
        return row


def _check(code: int) -> None:
    if code:
        raise Refused(code)


class Transactor:
    """Writes to several partitions at once, or to none; another may have the same transactional id."""

    def __init__(self, client: Client, transactional_id: str, places: list[Place], *, pace_s: float) -> None:
        self._client = client
        self._transactional_id = transactional_id
        self._places = places
        self._pace_s = pace_s
        self._number = 0

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            session = Session(client, self._transactional_id, client.random.choice((FIRST, SECOND)))
            try:
                await session.begin()
                while not client.stopping:
                    await self._transaction(session)
                    client.succeeded()
                    if client.random.random() < 0.1:
                        break
                    await client.nap(self._pace_s * (1 + self._number / TIRES_AFTER))
            except (Unanswered, Refused) as failed:
                client.note(f"gives a transaction up: {failed}")
                await client.nap(1.0)
            except Ended:
                await client.nap(client.random.choice(GONE_S))

    async def _transaction(self, session: Session) -> None:
        """Raises Unanswered, Refused, Ended."""
        client = self._client
        client.history.transactions.append(session.transaction)
        for _ in range(client.random.randint(1, 4)):
            values = [self._value() for _ in range(client.random.choice((1, 1, 3)))]
            place = client.random.choice(self._places)
            await session.write(place, [Sent(value, place, -1, True) for value in values])
            if client.random.random() < 0.2:
                await asyncio.sleep(client.random.random() * 2)
        await session.end(commit=client.random.random() >= ABORT_ODDS)

    def _value(self) -> bytes:
        self._number += 1
        return b"%s/%d" % (self._client.name.encode(), self._number)
