"""Sends lines as records, in batches per partition; with acks=all, the producer is idempotent."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kpybroker.cli.cluster_facts import require_partition
from kpybroker.cli.json_lines import Outgoing, parse_json_line
from kpybroker.cli.murmur2 import partition_of
from kpybroker.client.client import Client, CommandFailed, check
from kpybroker.client.session import refusal_text
from kpybroker.client.transaction import VERSIONS_MAX, Transactions
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.batch import Headers, Keyed, Record, encode_batch
from kpybroker.wire.records.compression import Codec
from kpybroker.wire.rpc import init_producer_id, metadata, produce

BATCH_BYTES = 256 * 1024
"""A batch is closed at this size; a single record may be larger."""
BATCH_RECORDS_MAX = 20_000
OPEN_BYTES_MAX = 16 * 1024 * 1024
"""The most bytes that all unsent batches together may hold."""
RECORD_OVERHEAD_BYTES = 16
LINE_BYTES_MAX = 64 * 1024 * 1024
TOO_LARGE = {ErrorCode.MESSAGE_TOO_LARGE: "max.message.bytes", ErrorCode.RECORD_LIST_TOO_LARGE: "segment.bytes"}
"""The topic setting that limits the size of the batch."""


@dataclass(slots=True)
class SendOptions:
    """The command's options. `separator` separates key and value; a value equal to `null_marker` is null.

    `is_json`: each line is a JSON object instead.
    """

    partition: int | None = None
    acks: int = -1
    codec: Codec = Codec.NONE
    separator: bytes | None = None
    null_marker: bytes | None = None
    headers: Headers = ()
    is_json: bool = False


@dataclass(slots=True)
class OpenBatch:
    """The records that will be sent in the next batch of a partition."""

    records: list[Record | Keyed] = field(default_factory=list)
    size_bytes: int = 0


class Lines:
    """Turns bytes into records, one per line. The last line needs no newline."""

    def __init__(self, how: SendOptions) -> None:
        self._how = how
        self._rest = b""
        self._count = 0

    def feed(self, data: bytes) -> Iterator[Outgoing]:
        """The records of all complete lines. Raises CommandFailed at an invalid line, after yielding those before
        it."""
        whole, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._rest += data
            lines = []
        else:
            lines = (self._rest + whole).split(b"\n")
            self._rest = rest
        if len(self._rest) > LINE_BYTES_MAX:
            raise CommandFailed(f"line {self._count + 1} is longer than {LINE_BYTES_MAX} bytes; is the input text?")
        return map(self._parse, lines)

    def end(self) -> Iterator[Outgoing]:
        """The record after the last newline."""
        rest, self._rest = self._rest, b""
        return map(self._parse, [rest] if rest else [])

    def _parse(self, line: bytes) -> Outgoing:
        self._count += 1
        if line.endswith(b"\r"):
            line = line[:-1]
        if self._how.is_json:
            return parse_json_line(line, self._count)
        key: bytes | None = None
        value: bytes | None = line
        if self._how.separator is not None:
            key, found, value = line.partition(self._how.separator)
            if not found:
                separator = self._how.separator.decode()
                raise CommandFailed(
                    f"line {self._count} has no {separator!r} between key and value; the lines before it were sent"
                )
        return Outgoing(key, None if value == self._how.null_marker and value is not None else value)


class RecordSender:
    """Sends records to one topic. `sent` counts the records that the brokers have acknowledged.

    transactions: if given, the records belong to the open transaction.
    """

    def __init__(self, client: Client, topic: str, how: SendOptions, transactions: Transactions | None = None) -> None:
        self._transactions = transactions
        self._client = client
        self._topic = topic
        self._how = how
        self._known: metadata.MetadataResponseTopic | None = None
        self._open: dict[int, OpenBatch] = {}
        self._open_bytes = 0
        self._count = 0
        self._keyless = 0
        self._producer = (-1, -1)
        self._sequences: dict[int, int] = {}
        self.sent: dict[int, int] = {}
        """The number of records acknowledged (with acks=0: written to the socket), by partition."""
        self.sent_bytes = 0

    async def start(self) -> bool:
        """Find or create the topic, and obtain a producer id for acks=all. Returns whether the topic was created.

        Raises CommandFailed, KafkaError.
        """
        created = await self._client.create_if_missing(self._topic)
        partitions = (await self._client.topic(self._topic)).partitions
        self._count = len(partitions)
        chosen = self._how.partition
        if chosen is not None:
            require_partition(self._topic, chosen, range(self._count))
        self._keyless = time.time_ns() // 1000 % self._count
        if self._transactions is not None:
            self._producer = self._transactions.producer
        elif self._how.acks == -1:
            self._producer = await self._client.patiently(self._begin)
        return created

    async def _begin(self) -> tuple[int, int]:
        """Obtain a producer id and its epoch. Retries, because Apache Kafka has no producer ids just after its
        start."""
        request = init_producer_id.Request(transactional_id=None, transaction_timeout_ms=60_000)
        response = await self._client.ask("InitProducerId", request, at_most=5)
        check(response.error_code)
        return response.producer_id, response.producer_epoch

    async def add(self, records: Iterable[Outgoing]) -> None:
        """Add records, and send the waiting batches when one of them is full."""
        for record in records:
            headers = record.headers + self._how.headers
            partition = self._partition(record)
            waiting = self._open.get(partition)
            if waiting is None:
                waiting = self._open[partition] = OpenBatch()
            size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
            size += sum(len(name) + len(content or b"") for name, content in record.headers)
            if waiting.records and waiting.size_bytes + size > BATCH_BYTES:
                await self.flush()
                waiting = self._open[partition] = OpenBatch()
            if record.timestamp is None:
                waiting.records.append((record.key, record.value, headers))
            else:
                waiting.records.append(Record(0, record.timestamp, record.key, record.value, headers))
            waiting.size_bytes += size
            self._open_bytes += size
            is_full = waiting.size_bytes >= BATCH_BYTES or len(waiting.records) >= BATCH_RECORDS_MAX
            if is_full or self._open_bytes >= OPEN_BYTES_MAX:
                await self.flush()

    def _partition(self, record: Outgoing) -> int:
        if self._how.partition is not None:
            return self._how.partition
        if record.partition is not None:
            if not 0 <= record.partition < self._count:
                raise CommandFailed(
                    f"{self._topic} has no partition {record.partition}, which a line names: there are 0 to "
                    f"{self._count - 1}; add partitions, or send all records to one with --partition"
                )
            return record.partition
        return self._keyless if record.key is None else partition_of(record.key, self._count)

    async def flush(self) -> None:
        """Send all waiting records, one batch per partition. Raises CommandFailed, KafkaError, OSError."""
        waiting, self._open, self._open_bytes = self._open, {}, 0
        now_ms = time.time_ns() // 1_000_000
        todo: dict[int, memoryview] = {}
        for partition, batch in waiting.items():
            producer_id, producer_epoch = self._producer
            sequence = self._sequences.get(partition, 0) if producer_id >= 0 else -1
            batch_bytes = encode_batch(
                batch.records,
                timestamp_ms=now_ms,
                codec=self._how.codec,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence,
                transactional=self._transactions is not None,
            )
            todo[partition] = memoryview(batch_bytes)
        if todo and self._transactions is not None:
            await self._transactions.add_partitions(self._topic, todo)
        if todo:
            # without a producer id, a batch that is sent again may be stored twice
            await self._client.patiently(lambda: self._send(todo), resend=self._producer[0] >= 0)
        for partition, batch in waiting.items():
            self.sent[partition] = self.sent.get(partition, 0) + len(batch.records)
            self.sent_bytes += batch.size_bytes - RECORD_OVERHEAD_BYTES * len(batch.records)
            self._sequences[partition] = (self._sequences.get(partition, 0) + len(batch.records)) & 0x7FFFFFFF
        if self._keyless in waiting:
            self._keyless = (self._keyless + 1) % self._count

    async def _send(self, todo: dict[int, memoryview]) -> None:
        """Send the batches in `todo` to their leaders, and remove those that were stored."""
        topic = self._known or await self._client.topic(self._topic)
        self._known = None  # after a failure below, the next attempt fetches metadata again
        leaders = {partition.partition_index: partition.leader_id for partition in topic.partitions}
        refused: KafkaError | CommandFailed | None = None
        for node in sorted({leaders[partition] for partition in todo}):
            mine = {partition: batch for partition, batch in todo.items() if leaders[partition] == node}
            request = produce.Request(
                transactional_id=None if self._transactions is None else self._transactions.transactional_id,
                acks=self._how.acks,
                timeout_ms=self._client.timeout_ms,
                topic_data=[
                    produce.TopicProduceData(
                        name=self._topic,
                        topic_id=topic.topic_id,
                        partition_data=[
                            produce.PartitionProduceData(index=partition, records=batch)
                            for partition, batch in mine.items()
                        ],
                    )
                ],
            )
            if self._how.acks == 0:
                await self._client.send("Produce", request, node=node)
                for partition in mine:
                    del todo[partition]
                continue
            at_most = None if self._transactions is None else VERSIONS_MAX["Produce"]
            response = await self._client.ask("Produce", request, node=node, at_most=at_most)
            for row in response.responses[0].partition_responses:
                if row.error_code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    todo.pop(row.index, None)
                    continue
                refused = _refusal(row, self._topic, len(mine[row.index]))
        if refused is not None:
            raise refused
        self._known = topic


def _refusal(row: produce.PartitionProduceResponse, topic: str, size_bytes: int) -> KafkaError | CommandFailed:
    """An error text for a batch that was not stored. If a size limit is the cause, it names a value that is
    sufficient."""
    try:
        check(row.error_code, row.error_message or f"a batch for {topic}-{row.index}")
    except KafkaError as refusal:
        setting = TOO_LARGE.get(refusal.code)
        if setting is None:
            return refusal
        way_out = f"`kpybroker topics alter {topic} --set {setting}={size_bytes}` allows it"
        return CommandFailed(f"{refusal_text(refusal)}; {way_out}")
    raise AssertionError("the batch was stored")
