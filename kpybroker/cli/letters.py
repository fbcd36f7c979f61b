"""Reads dead letters for commands: their headers, and the original records."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Set
from contextlib import aclosing
from typing import NamedTuple

from kpybroker.cli.consuming import TopicReader, find_ends
from kpybroker.cli.redriven import Redriven, redriven_in
from kpybroker.client.client import EARLIEST, Client
from kpybroker.errors import ErrorCode
from kpybroker.metadata.retirements import retired_name
from kpybroker.shares.dead_letters import DELIVERY_COUNT, GROUP, MESSAGE, OFFSET, PARTITION, TOPIC
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import Record

OWN = "__dlq."
"""The names of the headers of dead letters begin with this."""
DIGITS_MAX = 19
MISSING = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)
"""The errors for topics that do not exist."""
NO_TOPIC = f"no header {TOPIC}"
NO_PARTITION = f"no usable header {PARTITION}"
FROM_HERE = f"{TOPIC} names the dead letter topic itself"
Source = tuple[str, int, int]
"""Topic, partition and offset of a record."""


class Letter(NamedTuple):
    """A dead letter: a record, and what its headers tell (KIP-1191). If a header is missing, a text is empty and a
    number is None."""

    partition: int
    record: Record
    topic: str
    origin: int | None
    """The partition of the original record."""
    offset: int | None
    group: str
    attempts: int | None
    error: str
    fault: str
    """Why the letter cannot be sent home; empty if it can."""

    @property
    def name(self) -> str:
        """Partition and offset in the dead letter topic."""
        return f"{self.partition}:{self.record.offset}"

    @property
    def source(self) -> Source | None:
        """The place of the original record, if the headers name it."""
        if self.fault or self.origin is None or self.offset is None:
            return None
        return self.topic, self.origin, self.offset

    @property
    def is_copy(self) -> bool:
        """Whether the letter has a key, a value or headers of the original record, or is all that there is of it."""
        record = self.record
        has_some = record.key is not None or record.value is not None
        return has_some or self.source is None or any(not name.startswith(OWN) for name, _ in record.headers)


def read_letter(dead: str, partition: int, record: Record) -> Letter:
    """The dead letter in a record of the topic `dead`."""
    told = {name: (value or b"").decode(errors="replace") for name, value in record.headers if name.startswith(OWN)}
    topic, origin = told.get(TOPIC, ""), _number(told.get(PARTITION))
    if not topic:
        fault = NO_TOPIC
    elif topic == dead:
        fault = FROM_HERE
    else:
        fault = NO_PARTITION if origin is None else ""
    offset, attempts = _number(told.get(OFFSET)), _number(told.get(DELIVERY_COUNT))
    return Letter(partition, record, topic, origin, offset, told.get(GROUP, ""), attempts, told.get(MESSAGE, ""), fault)


def _number(text: str | None) -> int | None:
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
    return int(text) if text is not None and is_number else None


class LetterReader:
    """The dead letters of a topic, from the first that was not redriven to the last one that exists now. Letters of
    open and aborted transactions are left out."""

    def __init__(
        self, client: Client, topic: str, redriven: dict[int, Redriven], positions: dict[int, int], ends: dict[int, int]
    ) -> None:
        self._topic = topic
        self.redriven = redriven
        """The redriven offsets by partition, when the reader was opened."""
        self.ends = ends
        self._reader = TopicReader(client, topic, positions, ends, committed=True)

    @classmethod
    async def open(
        cls,
        client: Client,
        topic: str,
        *,
        again: bool = False,
        only: tuple[int, int] | None = None,
        stable: bool = False,
    ) -> LetterReader:
        """Find the letters. Raises CommandFailed, KafkaError.

        again: begin at the first letter, even if it was redriven.
        only: the partition and offset of the only letter to be read.
        stable: wait for the end of another redrive's transaction.
        """
        partitions = [row.partition_index for row in (await client.topic(topic)).partitions]
        found = await client.list_offsets({(topic, index): EARLIEST for index in partitions})
        starts = {index: found[topic, index] for index in partitions}
        ends = await find_ends(client, topic, partitions, committed=True)
        redriven = await redriven_in(client, topic, starts, ends, stable=stable)
        positions = {index: starts[index] if again else redriven[index].committed for index in partitions}
        if only is not None:
            partition, offset = only
            ends = {index: min(offset + 1, end) if index == partition else 0 for index, end in ends.items()}
            positions = {index: max(offset, start) for index, start in starts.items() if index == partition}
        return cls(client, topic, redriven, positions, ends)

    @property
    def places(self) -> dict[int, int]:
        """By partition, the offset after the last one that was read."""
        return {index: min(at, self.ends[index]) for index, at in self._reader.positions.items()}

    async def pages(self) -> AsyncGenerator[list[Letter], None]:
        """The dead letters, in pages, with those that were redriven between others. Raises CommandFailed, KafkaError,
        OSError."""
        async with aclosing(self._reader.pages()) as pages:
            async for page in pages:
                yield [read_letter(self._topic, partition, record) for partition, record in page]

    def was_redriven(self, letter: Letter) -> bool:
        return letter.record.offset in self.redriven[letter.partition]


async def originals_of(client: Client, letters: Iterable[Letter]) -> dict[Source, Record]:
    """The original records of dead letters without a copy. Deleted records are missing. Raises KafkaError, OSError."""
    wanted: dict[TopicPartition, set[int]] = {}
    for letter in letters:
        if letter.source is not None and not letter.is_copy:
            topic, index, offset = letter.source
            wanted.setdefault((topic, index), set()).add(offset)
    found: dict[Source, Record] = {}
    names = {topic for topic, _ in wanted}
    known = await client.metadata({*names, *map(retired_name, names)}) if wanted else {}
    counts = {name: len(topic.partitions) for name, topic in known.items() if topic.error_code not in MISSING}
    for (topic, index), offsets in wanted.items():
        in_use, retired = counts.get(topic, 0), counts.get(retired_name(topic), 0)
        place = topic, index
        if index >= in_use:
            place = retired_name(topic), in_use + retired - 1 - index  # the retired ones are numbered from the last
        if place[1] >= 0:
            records = await _records_at(client, *place, offsets)
            found |= {(topic, index, offset): record for offset, record in records.items()}
    return found


async def _records_at(client: Client, topic: str, index: int, offsets: Set[int]) -> dict[int, Record]:
    """The records of a partition at these offsets, as far as they exist."""
    found: dict[int, Record] = {}
    at, end = 0, (await find_ends(client, topic, [index]))[index]
    start = (await client.list_offsets({(topic, index): EARLIEST}))[topic, index]
    for offset in sorted(offsets):
        if offset < max(at, start) or offset >= end:
            continue
        reader = TopicReader(client, topic, {index: offset}, {index: end})
        async with aclosing(reader.pages()) as pages:
            async for page in pages:  # a throttled response is empty
                found |= {record.offset: record for _, record in page if record.offset in offsets}
                if reader.positions[index] > offset:
                    break
        at = reader.positions[index]
    return found
