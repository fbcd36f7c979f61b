"""Clients that continue after a change of the broker software. They send single requests, to control which requests are
repeated and which must be refused."""

from __future__ import annotations

import struct
from typing import Any

from compat_tests.changing import LONG_MS, Source, commit, coordinator, new_producer, patiently, send, until
from compat_tests.visible import TRANSACTION, UNSTABLE_OFFSET_COMMIT, Eyes, Place, committed_at, transaction
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import (
    consumer_group_heartbeat,
    end_txn,
    heartbeat,
    join_group,
    offset_commit,
    sync_group,
    txn_offset_commit,
)

OUT_OF_ORDER, MEMBER_ID_REQUIRED = 45, 79
CONSUMER = "consumer"
STATIC = "static"


def subscription(*topics: str) -> bytes:
    """The subscription of a member of the classic protocol: ConsumerProtocolSubscription 0."""
    return struct.pack(">hi", 0, len(topics)) + b"".join(_string(topic) for topic in topics) + struct.pack(">i", -1)


def assignment(topic: str, *partitions: int) -> bytes:
    """The assignment of such a member: ConsumerProtocolAssignment 0."""
    numbers = struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return struct.pack(">hi", 0, 1) + _string(topic) + numbers + struct.pack(">i", -1)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


class Idempotent:
    """An idempotent producer with its sequences, which it keeps when the broker changes."""

    def __init__(self, source: Source, topic: str) -> None:
        self._source = source
        self._place = topic, 0
        self._sequence = 0
        self._sent: list[tuple[bytearray, int]] = []

    def begin(self, eyes: Eyes) -> None:
        self._who = new_producer(eyes, self._source, None)
        for count in (3, 1, 4):
            self._send(eyes, count)

    def _batch(self, count: int, sequence: int) -> bytearray:
        records = self._source.records(count)
        who = self._who
        return encode_batch(
            records, producer_id=who.producer_id, producer_epoch=who.producer_epoch, base_sequence=sequence
        )

    def _send(self, eyes: Eyes, count: int) -> None:
        batch = self._batch(count, self._sequence)
        self._sent.append((batch, send(eyes, self._place, batch)))
        self._sequence += count

    def go_on(self, eyes: Eyes) -> None:
        """Check that the last batch, sent again, is a duplicate, that a batch that leaves a gap is refused, and that
        the next batch is accepted."""
        last, offset = self._sent[-1]
        assert send(eyes, self._place, last) == offset, "a batch that was sent again was appended again"
        gap = self._batch(1, self._sequence + 1)
        assert send(eyes, self._place, gap, None, OUT_OF_ORDER) == -OUT_OF_ORDER
        self._send(eyes, 2)
        self._send(eyes, 3)
        new_producer(eyes, self._source, None)


class Transacting:
    """A transactional producer of transaction version 2 (KIP-890): its epoch is bumped with each transaction."""

    def __init__(
        self, source: Source, transactional_id: str, places: list[Place], offsets_of: Place, *, commits: bool = False
    ) -> None:
        self.id = transactional_id
        self._source = source
        self._places = places
        self._offsets_of = offsets_of
        self._commits = commits
        self._sequences: dict[Place, int] = {}
        self._offset = 0

    def begin(self, eyes: Eyes, timeout_ms: int = LONG_MS) -> None:
        """Initialize the producer id."""
        self.who = new_producer(eyes, self._source, self.id, timeout_ms)
        self._sequences = {}

    def leave_open(self, eyes: Eyes) -> None:
        """Open a transaction with everything that it can contain."""
        for place in self._places:
            self.send(eyes, place)
        self._send_offset(eyes)

    def send(self, eyes: Eyes, place: Place) -> None:
        sequence = self._sequences.get(place, 0)
        records = self._source.records(2, self.id.encode())
        batch = encode_batch(
            records,
            producer_id=self.who.producer_id,
            producer_epoch=self.who.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        send(eyes, place, batch, self.id)
        self._sequences[place] = sequence + len(records)

    @property
    def group(self) -> str:
        """The group whose offsets the transactions commit."""
        return f"{self.id}-group"

    def _send_offset(self, eyes: Eyes) -> None:
        self._offset += 1
        place = self._offsets_of
        row = txn_offset_commit.TxnOffsetCommitRequestPartition(
            partition_index=place[1], committed_offset=self._offset, committed_metadata="in a transaction"
        )
        topic = txn_offset_commit.TxnOffsetCommitRequestTopic(name=place[0], partitions=[row])
        request = txn_offset_commit.Request(
            transactional_id=self.id,
            group_id=self.group,
            producer_id=self.who.producer_id,
            producer_epoch=self.who.producer_epoch,
            topics=[topic],
        )

        def ask() -> int:
            told = eyes.ask("TxnOffsetCommit", request, txn_offset_commit.Response, coordinator(eyes, self.group))
            return int(told.topics[0].partitions[0].error_code)

        patiently(ask)

    def end(self, eyes: Eyes) -> None:
        """Commit or abort, and wait until the transaction is complete."""
        who = self.who
        request = end_txn.Request(
            transactional_id=self.id,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            committed=self._commits,
        )
        told = end_txn.Response()

        def ask() -> int:
            nonlocal told
            told = eyes.ask("EndTxn", request, end_txn.Response, coordinator(eyes, self.id, TRANSACTION))
            return int(told.error_code)

        patiently(ask)
        assert told.producer_id == who.producer_id
        assert told.producer_epoch == who.producer_epoch + 1
        self.who = told
        self._sequences = {}
        verdict = "CompleteCommit" if self._commits else "CompleteAbort"
        until(lambda: transaction(eyes, self.id)[0] == verdict, f"{self.id} has ended")

    def go_on(self, eyes: Eyes) -> None:
        """Add more records to the open transaction and end it. Check that its offsets take effect only if it is
        committed."""
        group, place = self.group, self._offsets_of
        pending = committed_at(eyes, group, place, stable=True)
        assert pending[:2] == (-1, UNSTABLE_OFFSET_COMMIT), pending
        before = committed_at(eyes, group, place, stable=False)
        assert transaction(eyes, self.id)[0] == "Ongoing"
        self.send(eyes, self._places[-1])
        self.end(eyes)
        after = committed_at(eyes, group, place, stable=True)
        if self._commits:
            assert after[0] == self._offset
        else:
            assert after == before

    def has_expired(self, eyes: Eyes, timeout_ms: int) -> None:
        """Check that the broker has aborted the transaction of a producer that did not return, and that the next
        producer receives a new epoch."""
        until(lambda: transaction(eyes, self.id)[0] == "CompleteAbort", f"{self.id} is aborted")
        before = self.who
        self.begin(eyes, timeout_ms)
        assert self.who.producer_id == before.producer_id
        assert self.who.producer_epoch > before.producer_epoch


class Classic:
    """A group of the classic protocol with one static member, which is its leader."""

    def __init__(self, group: str, topic: str) -> None:
        self._group = group
        self._topic = topic
        self._member = ""
        self._generation = -1
        self._offset = 0

    def join(self, eyes: Eyes) -> None:
        """Join with the member id from the first response."""
        told = self._join(eyes, "")
        if told.error_code == MEMBER_ID_REQUIRED:
            told = self._join(eyes, told.member_id)
        assert told.error_code == 0, told.error_code
        self._member, self._generation = told.member_id, told.generation_id
        given = sync_group.SyncGroupRequestAssignment(member_id=self._member, assignment=assignment(self._topic, 0, 1))
        request = sync_group.Request(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._member,
            group_instance_id=STATIC,
            protocol_type=CONSUMER,
            protocol_name="range",
            assignments=[given],
        )
        told = eyes.ask("SyncGroup", request, sync_group.Response, coordinator(eyes, self._group))
        assert told.error_code == 0
        self._commit(eyes)

    def _join(self, eyes: Eyes, member_id: str) -> Any:
        protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=subscription(self._topic))
        request = join_group.Request(
            group_id=self._group,
            session_timeout_ms=LONG_MS,
            rebalance_timeout_ms=LONG_MS,
            member_id=member_id,
            group_instance_id=STATIC,
            protocol_type=CONSUMER,
            protocols=[protocol],
        )
        told: Any = None

        def ask() -> int:
            nonlocal told
            told = eyes.ask("JoinGroup", request, join_group.Response, coordinator(eyes, self._group))
            return int(told.error_code)

        patiently(ask, 0, MEMBER_ID_REQUIRED)
        return told

    def _commit(self, eyes: Eyes) -> None:
        self._offset += 1
        request = offset_commit.Request(
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member,
            group_instance_id=STATIC,
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name=self._topic,
                    partitions=[
                        offset_commit.OffsetCommitRequestPartition(partition_index=1, committed_offset=self._offset)
                    ],
                )
            ],
        )
        told = eyes.ask("OffsetCommit", request, offset_commit.Response, coordinator(eyes, self._group), version=9)
        assert told.topics[0].partitions[0].error_code == 0, told.topics[0].partitions[0].error_code

    def go_on(self, eyes: Eyes) -> None:
        """Check that the member is still in its generation."""
        request = heartbeat.Request(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._member,
            group_instance_id=STATIC,
        )
        told = eyes.ask("Heartbeat", request, heartbeat.Response, coordinator(eyes, self._group))
        assert told.error_code == 0, told.error_code
        self._commit(eyes)


class Modern:
    """A group of the consumer protocol (KIP-848) with two members."""

    def __init__(self, group: str, topic: str) -> None:
        self._group = group
        self._topic = topic
        self._epochs = {f"{group}-member-{number}": 0 for number in (1, 2)}
        self._owned: dict[str, set[int]] = {member: set() for member in self._epochs}

    def join(self, eyes: Eyes) -> None:
        """Join until both members have their share of the partitions."""
        until(lambda: self._settle(eyes), f"{self._group} has settled")
        self._commit(eyes)

    def _settle(self, eyes: Eyes) -> bool:
        for member in self._epochs:
            self._beat(eyes, member)
        shares = sorted(len(owned) for owned in self._owned.values())
        return shares == [1, 2] and len(set(self._epochs.values())) == 1

    def _beat(self, eyes: Eyes, member: str) -> None:
        owned = consumer_group_heartbeat.TopicPartitions(
            topic_id=eyes.ids[self._topic], partitions=sorted(self._owned[member])
        )
        joins = self._epochs[member] == 0
        request = consumer_group_heartbeat.Request(
            group_id=self._group,
            member_id=member,
            member_epoch=self._epochs[member],
            rebalance_timeout_ms=LONG_MS,
            subscribed_topic_names=[self._topic],
            topic_partitions=[owned] if self._owned[member] else [],
            instance_id=member if joins else None,
        )
        told: Any = None

        def ask() -> int:
            nonlocal told
            where = coordinator(eyes, self._group)
            told = eyes.ask("ConsumerGroupHeartbeat", request, consumer_group_heartbeat.Response, where)
            return int(told.error_code)

        patiently(ask)
        self._epochs[member] = told.member_epoch
        if told.assignment is not None:
            self._owned[member] = {at for topic in told.assignment.topic_partitions for at in topic.partitions}

    def _commit(self, eyes: Eyes) -> None:
        for member, owned in self._owned.items():
            for at in sorted(owned):
                commit(eyes, self._group, (self._topic, at), 1 + at, "mine", self._epochs[member], member)

    def go_on(self, eyes: Eyes) -> None:
        """Check that both members still have their partitions, and may commit."""
        before = {member: set(owned) for member, owned in self._owned.items()}
        until(lambda: self._settle(eyes), f"{self._group} has settled")
        assert self._owned == before, "partitions have moved"
        self._commit(eyes)
