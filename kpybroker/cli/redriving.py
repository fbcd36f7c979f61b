"""Sends dead letters home, to the topics of the original records, each of them once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kpybroker.cli.group_facts import commits
from kpybroker.cli.json_lines import Outgoing
from kpybroker.cli.letters import MISSING, OWN, Letter, LetterReader, Source, originals_of
from kpybroker.cli.paging import Tell
from kpybroker.cli.producing import RecordSender, SendOptions
from kpybroker.cli.redriven import METADATA_MAX, Redriven, redriven_by
from kpybroker.client.client import Client, CommandFailed, check
from kpybroker.client.session import refusal_text
from kpybroker.client.transaction import TIMEOUT_MS, Transactions
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.scheduled import times
from kpybroker.shares.dead_letters import TOPIC
from kpybroker.wire.records.batch import Record

REMEMBERED = 10_000
"""The number of sources that are stored to skip repeated dead letters, which follow soon after the first one."""
SCHEDULING = {name.decode() for name in (times.DELIVER_AT, times.DELIVER_AFTER, times.ACCEPTED, times.OFFSET)}
"""Headers of a record's last delivery. A redriven record is to be delivered now."""
FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)


@dataclass(slots=True)
class Counts:
    """What a redrive did, or its plan: numbers of dead letters."""

    sent: Counter[str] = field(default_factory=Counter)
    """By the topic to which they were sent."""
    repeated: Counter[str] = field(default_factory=Counter)
    """Not sent, because an earlier dead letter of the same group is for the same record. By topic."""
    gone: Counter[str] = field(default_factory=Counter)
    """Not sent, because the record was deleted, and the dead letter has no copy of it. By topic."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Left where they are, by the reason why they cannot be sent home."""


class Fate(NamedTuple):
    """What becomes of one letter. If `stays`, it is left for another redrive; `counter` counts it under `name`."""

    letter: Letter
    stays: bool
    counter: Counter[str] | None = None
    name: str = ""
    outgoing: Outgoing | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the letter was not redriven before, and is not left either."""
        return self.counter is not None and not self.stays


class Redriver:
    """Sends the dead letters of a topic, a page of at most 16 MB at a time.

    A transaction contains the records of a page, and the commit that says which letters were redriven (`redriven.py`).
    So a letter is sent once even if a redrive is killed; and a redrive that starts fences the one that is running.

    matches: whether a letter is to be sent.
    to: the topic to which all letters are sent; None sends each home.
    most: the most records to send.
    executes: without this, nothing is written.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        matches: Callable[[Letter], bool],
        *,
        to: str | None = None,
        most: int | None = None,
        executes: bool = True,
    ) -> None:
        self.counts = Counts()
        self._client = client
        self._topic = topic
        self._matches = matches
        self._to = to
        self._most = most
        self._transactions = Transactions(client, redriven_by(topic)) if executes else None
        self._redriven: dict[int, Redriven] = {}
        self._begun: dict[int, int] = {}
        """By partition, the offset where the page begins."""
        self._partitions: dict[str, int] = {}
        """The number of partitions of the topics that receive records."""
        self._senders: dict[str, RecordSender] = {}
        self._seen: OrderedDict[tuple[str, Source], None] = OrderedDict()

    async def run(self, tell: Tell) -> str:
        """Redrive all pages, or as many records as wanted. Returns the reason why it ended early, or "".

        `tell` is called with the number of offsets that were read, and of all. Raises CommandFailed, KafkaError,
        OSError.
        """
        try:
            if self._transactions is not None:
                await self._transactions.start()
            reader = await LetterReader.open(self._client, self._topic, stable=self._transactions is not None)
            self._redriven, self._begun = dict(reader.redriven), reader.places
            async with contextlib.aclosing(reader.pages()) as pages:
                stopped = await self._redrive(reader, pages, tell)
            if self._transactions is not None:  # what reads the offsets next is to find the last commit
                await commits(self._client, redriven_by(self._topic), stable=True)
        except KafkaError as refusal:
            if refusal.code in FENCED:
                raise CommandFailed(
                    f"another redrive of {self._topic} has begun, or a page took longer than {TIMEOUT_MS // 1000} s; "
                    "what this one has not sent is left for the next redrive"
                ) from refusal
            if refusal.code is ErrorCode.OFFSET_METADATA_TOO_LARGE:
                raise CommandFailed(
                    f"the broker refuses metadata of an offset with up to {METADATA_MAX} characters, which tells what "
                    "was sent; raise its offset.metadata.max.bytes, or redrive without --where"
                ) from refusal
            raise
        return stopped

    async def _redrive(self, reader: LetterReader, pages: AsyncIterator[list[Letter]], tell: Tell) -> str:
        first, last = sum(self._begun.values()), sum(reader.ends.values())
        async for page in pages:
            fates = await self._fates(page)
            wanted = self._wanted(fates)
            fitting = self._fitting(fates[:wanted], reader.places if wanted == len(fates) else None)
            await self._settle(fates[:fitting], reader.places if fitting == len(fates) else None)
            tell(sum(self._begun.values()) - first, last - first)
            if fitting < wanted:
                return _no_room(fates[fitting].letter)
            if self._most is not None and self.counts.sent.total() >= self._most:
                return ""
        return ""

    async def _fates(self, page: Sequence[Letter]) -> list[Fate]:
        """What is to become of the letters of a page. Raises CommandFailed if a topic is missing."""
        chosen = [letter for letter in page if not self._is_done(letter) and self._matches(letter)]
        await self._find_topics([letter for letter in chosen if self._to is not None or not letter.fault])
        originals = await originals_of(self._client, chosen)
        names = {letter.name for letter in chosen}
        return [self._fate(letter, originals, is_chosen=letter.name in names) for letter in page]

    def _is_done(self, letter: Letter) -> bool:
        return letter.record.offset in self._redriven[letter.partition]

    def _fate(self, letter: Letter, originals: Mapping[Source, Record], *, is_chosen: bool) -> Fate:
        source, counts = letter.source, self.counts
        if self._is_done(letter):
            self._is_new(letter.group, source)
            return Fate(letter, stays=False)
        if not is_chosen:
            return Fate(letter, stays=True)
        if letter.fault and self._to is None:
            return Fate(letter, stays=True, counter=counts.skipped, name=letter.fault)
        topic = self._to or letter.topic
        if not self._is_new(letter.group, source):
            return Fate(letter, stays=False, counter=counts.repeated, name=topic)
        record = letter.record if source is None or letter.is_copy else originals.get(source)
        if record is None:
            return Fate(letter, stays=False, counter=counts.gone, name=topic)
        headers = tuple(
            (name, value) for name, value in record.headers if not name.startswith(OWN) and name not in SCHEDULING
        )
        # a partition that the topic no longer has, or another topic has, is chosen by the key
        is_home = letter.origin is not None and letter.origin < self._partitions[topic] and topic == letter.topic
        outgoing = Outgoing(record.key, record.value, headers, letter.origin if is_home else None)
        return Fate(letter, stays=False, counter=counts.sent, name=topic, outgoing=outgoing)

    def _is_new(self, group: str, source: Source | None) -> bool:
        if source is None:
            return True
        if (group, source) in self._seen:
            return False
        self._seen[group, source] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return True

    async def _find_topics(self, letters: Sequence[Letter]) -> None:
        """Store the number of partitions of the topics that receive these letters. Raises CommandFailed, KafkaError."""
        wanted = {self._to or letter.topic: letter for letter in reversed(letters)}
        new = {topic: letter for topic, letter in wanted.items() if topic not in self._partitions}

        async def attempt() -> None:
            for name, topic in (await self._client.metadata(sorted(new))).items():
                if topic.error_code in MISSING and self._to is None:
                    raise CommandFailed(
                        f"the dead letter {new[name].name} is from the topic {name}, which does not exist; create it, "
                        + _ways_out(name)
                    )
                if topic.error_code in MISSING:
                    raise CommandFailed(f"there is no topic {name}; create it with `kpybroker topics create {name}`")
                check(topic.error_code, f"topic {name}")
                self._partitions[name] = len(topic.partitions)

        if new:
            await self._client.patiently(attempt)

    def _wanted(self, fates: Sequence[Fate]) -> int:
        """The number of letters up to the last one that may be sent."""
        left = sys.maxsize if self._most is None else self._most - self.counts.sent.total()
        for number, fate in enumerate(fates):
            if fate.outgoing is not None:
                if left == 0:
                    return number
                left -= 1
        return len(fates)

    def _fitting(self, fates: Sequence[Fate], ends: Mapping[int, int] | None) -> int:
        """The number of letters that can be settled so that the commit is not too large."""

        def fits(count: int) -> bool:
            after = self._after(fates[:count], ends if count == len(fates) else None)
            return all(each.metadata is not None for each in after.values())

        if not any(fate.is_settled for fate in fates) or fits(len(fates)):
            return len(fates)
        fitting, too_many = 0, len(fates)
        while too_many - fitting > 1:
            middle = (fitting + too_many) // 2
            fitting, too_many = (middle, too_many) if fits(middle) else (fitting, middle)
        return fitting

    def _after(self, fates: Sequence[Fate], ends: Mapping[int, int] | None) -> dict[int, Redriven]:
        """The redriven offsets by partition when these letters are settled. `ends`: where the page ends; None if only
        a part of its letters is settled."""
        stored: dict[int, list[int]] = {partition: [] for partition in self._begun}
        left: dict[int, list[int]] = {partition: [] for partition in self._begun}
        for fate in fates:
            stored[fate.letter.partition].append(fate.letter.record.offset)
            if fate.stays:
                left[fate.letter.partition].append(fate.letter.record.offset)
        found = dict(self._redriven)
        for partition, begin in self._begun.items():
            end = stored[partition][-1] + 1 if stored[partition] else begin
            end = end if ends is None else ends[partition]
            if end > begin:
                found[partition] = found[partition].read(begin, end, stored[partition], left[partition])
        return found

    async def _settle(self, fates: Sequence[Fate], ends: Mapping[int, int] | None) -> None:
        """Send letters, commit that they were sent, and count them."""
        after = self._after(fates, ends)
        changed = {fate.letter.partition for fate in fates if fate.is_settled}
        if changed and self._transactions is not None:
            offsets = {each: (after[each].committed, after[each].metadata or "") for each in changed}
            await self._transact(self._transactions, fates, offsets)
        for fate in fates:
            if fate.counter is not None:
                fate.counter[fate.name] += 1
        self._redriven = after
        self._begun = self._begun if ends is None else dict(ends)

    async def _transact(
        self, transactions: Transactions, fates: Sequence[Fate], offsets: Mapping[int, tuple[int, str]]
    ) -> None:
        outgoing: dict[str, list[Outgoing]] = {}
        for fate in fates:
            if fate.outgoing is not None:
                outgoing.setdefault(fate.name, []).append(fate.outgoing)
        try:
            for topic, records in outgoing.items():
                await self._send(topic, records, transactions)
            await transactions.commit_offsets(redriven_by(self._topic), self._topic, offsets)
        except (KafkaError, CommandFailed, OSError, asyncio.CancelledError):
            with contextlib.suppress(KafkaError, OSError):
                await transactions.end(commits=False)
            raise
        await transactions.end(commits=True)

    async def _send(self, topic: str, records: Sequence[Outgoing], transactions: Transactions) -> None:
        try:
            if topic not in self._senders:
                sender = self._senders[topic] = RecordSender(self._client, topic, SendOptions(), transactions)
                await sender.start()
            await self._senders[topic].add(records)
            await self._senders[topic].flush()
        except KafkaError as refusal:  # the topic may be a view, or have a smaller limit
            if refusal.code in FENCED:
                raise
            raise CommandFailed(f"{topic}: {refusal_text(refusal)}; {_ways_out(topic)}") from refusal


def _ways_out(topic: str) -> str:
    return (
        f"send its letters to another one with --to TOPIC, or leave them out with --where 'header.{TOPIC} != "
        f"{json.dumps(topic)}'"
    )


def _no_room(letter: Letter) -> str:
    return (
        f"stopped before the dead letter {letter.name}: what was sent is stored in the metadata of an offset, at most "
        f"{METADATA_MAX} characters, and has too many gaps for that; first redrive letters in the gaps, with another "
        "--where"
    )
