"""Reads dead letters for commands: their headers, their topics, and the original records."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from kpybroker.cli import group_facts
from kpybroker.cli.configs import Resource, described
from kpybroker.cli.consuming import TopicReader, find_ends
from kpybroker.client.client import EARLIEST, Client, CommandFailed
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.shares.dead_letters import DELIVERY_COUNT, GROUP, MESSAGE, OFFSET, PARTITION, TOPIC
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import Record

SETTING = "errors.deadletterqueue.topic.name"
OWN = frozenset({DELIVERY_COUNT, GROUP, MESSAGE, OFFSET, PARTITION, TOPIC})
Source = tuple[str, int, int]
"""Topic, partition and offset of a record."""


class Letter(NamedTuple):
    """A dead letter: a record, and the facts in its headers about the original record. If a header is missing, the text
    is empty or `deliveries` is None."""

    partition: int
    record: Record
    source: Source
    group: str
    deliveries: int | None
    reason: str


def read_letter(partition: int, record: Record) -> Letter | None:
    """The dead letter in a record of a dead letter topic; None if its headers do not identify the original record."""
    told = {name: (value or b"").decode(errors="replace") for name, value in record.headers if name in OWN}
    topic, index, offset = told.get(TOPIC), told.get(PARTITION, ""), told.get(OFFSET, "")
    if not topic or not (_is_number(index) and _is_number(offset)):
        return None
    deliveries = told.get(DELIVERY_COUNT, "")
    return Letter(
        partition,
        record,
        (topic, int(index), int(offset)),
        told.get(GROUP, ""),
        int(deliveries) if _is_number(deliveries) else None,
        told.get(MESSAGE, ""),
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


async def letter_topic(client: Client, group: str) -> str:
    """The dead letter topic of a group. Raises CommandFailed if it has none."""
    found = await described(client, Resource(ResourceType.GROUP, group), [SETTING])
    if not found or not found[0].value:
        raise CommandFailed(
            f"the group {group} has no dead letter topic; set {SETTING} for it, or name a topic with --topic"
        )
    return str(found[0].value).strip()


class LetterReader:
    """The dead letters of one group in one topic. Other groups may use the same topic.

    Dead letters that were redriven are skipped: their offsets are committed for the group `redriven_by`, which has no
    members.
    """

    def __init__(self, client: Client, group: str, topic: str, positions: dict[int, int], ends: dict[int, int]) -> None:
        self._group = group
        self._topic = topic
        self._reader = TopicReader(client, topic, positions, ends)
        self._ends = ends

    @classmethod
    async def open(cls, client: Client, group: str, topic: str, *, again: bool) -> LetterReader:
        """Read from the first dead letter that was not redriven (with `again`: from the first dead letter) to the last
        one that exists now. Raises CommandFailed, KafkaError."""
        partitions = [row.partition_index for row in (await client.topic(topic)).partitions]
        starts = await client.list_offsets({(topic, index): EARLIEST for index in partitions})
        done = {} if again else await group_facts.committed(client, redriven_by(group))
        positions = {index: max(starts[topic, index], done.get((topic, index), 0)) for index in partitions}
        return cls(client, group, topic, positions, await find_ends(client, topic, partitions))

    @property
    def places(self) -> dict[TopicPartition, int]:
        """By partition, the offset after the last dead letter that was read."""
        return {(self._topic, index): min(at, self._ends[index]) for index, at in self._reader.positions.items()}

    @property
    def left(self) -> int:
        """The number of offsets that were not read yet."""
        return sum(max(self._ends[index] - at, 0) for (_, index), at in self.places.items())

    async def pages(self) -> AsyncGenerator[list[Letter], None]:
        """The dead letters, in pages. Raises CommandFailed, KafkaError, OSError."""
        async with aclosing(self._reader.pages()) as pages:
            async for page in pages:
                letters = (read_letter(partition, record) for partition, record in page)
                yield [letter for letter in letters if letter is not None and letter.group == self._group]


def redriven_by(group: str) -> str:
    """The name of the group whose committed offsets mark the redriven dead letters of a group."""
    return f"{group}-redrive"


async def sources_of(client: Client, letters: Iterable[Letter]) -> dict[Source, Record]:
    """The original records of dead letters without a copy. Deleted records are missing. Raises KafkaError, OSError."""
    wanted: dict[TopicPartition, list[int]] = {}
    for letter in letters:
        topic, index, offset = letter.source
        wanted.setdefault((topic, index), []).append(offset)
    found: dict[Source, Record] = {}
    known = await client.metadata({topic for topic, _ in wanted}) if wanted else {}
    for (topic, index), offsets in wanted.items():
        there = known.get(topic)
        if there is None or there.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        if index < len(there.partitions):
            found |= await _records_at(client, topic, index, sorted(set(offsets)))
    return found


async def _records_at(client: Client, topic: str, index: int, offsets: Sequence[int]) -> dict[Source, Record]:
    found: dict[Source, Record] = {}
    at, end = 0, (await find_ends(client, topic, [index]))[index]
    start = (await client.list_offsets({(topic, index): EARLIEST}))[topic, index]
    for offset in offsets:
        if offset < max(at, start) or offset >= end:
            continue
        reader = TopicReader(client, topic, {index: offset}, {index: end})
        async with aclosing(reader.pages()) as pages:
            page: list[tuple[int, Record]] = await anext(pages, [])
        found |= {(topic, index, record.offset): record for _, record in page if record.offset in offsets}
        at = reader.positions[index]
    return found


def is_copy(letter: Letter) -> bool:
    """Whether the dead letter has a key, a value or headers of the original record."""
    record = letter.record
    return record.key is not None or record.value is not None or any(name not in OWN for name, _ in record.headers)
