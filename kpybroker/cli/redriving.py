"""Sends dead letters back to the topics of the original records."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from kpybroker.cli import group_facts
from kpybroker.cli.json_lines import Outgoing
from kpybroker.cli.letters import OWN, Letter, LetterReader, Source, is_copy, redriven_by, sources_of
from kpybroker.cli.producing import RecordSender, SendOptions
from kpybroker.client.client import Client, CommandFailed
from kpybroker.topics import TopicPartition

REMEMBERED = 10_000
"""The number of sources that are stored to skip repeated dead letters, which follow soon after the first one."""


@dataclass(slots=True)
class Redriven:
    """The result of a redrive, or of its dry run: counts of dead letters, by topic."""

    sent: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    """Not sent, because an earlier dead letter is for the same record."""
    gone: Counter[str] = field(default_factory=Counter)
    """Not sent, because the record was deleted, and the dead letter has no copy of it."""


class Redriver:
    """Sends the dead letters of a group, a page at a time, and then commits that they were sent.

    If a redrive is killed between sending and committing, the next one sends the page again, at most 16 MB: records are
    sent at least once.
    """

    def __init__(self, client: Client, group: str, reader: LetterReader, *, executes: bool) -> None:
        self.done = Redriven()
        self._client = client
        self._group = redriven_by(group)
        self._reader = reader
        self._executes = executes
        self._senders: dict[str, RecordSender] = {}
        self._seen: OrderedDict[Source, None] = OrderedDict()

    async def run(self, most: int | None, tell: Callable[[Redriven, int], None]) -> None:
        """Redrive pages until there are no more, or at least `most` records were sent. `tell` is called after each page
        with the number of dead letters that are left. Raises CommandFailed, KafkaError, OSError."""
        before = await group_facts.committed(self._client, self._group) if self._executes else {}
        async for page in self._reader.pages():
            await self._send(page)
            if self._executes:
                before = await self._commit(before)
            tell(self.done, self._reader.left)
            if most is not None and self.done.sent.total() >= most:
                return

    async def _send(self, page: list[Letter]) -> None:
        new = [letter for letter in page if self._is_new(letter.source)]
        self.done.repeated.update(letter.source[0] for letter in page)
        self.done.repeated.subtract(letter.source[0] for letter in new)
        sources = await sources_of(self._client, (letter for letter in new if not is_copy(letter)))
        outgoing: dict[str, list[Outgoing]] = {}
        for letter in new:
            topic, partition, _ = letter.source
            record = letter.record if is_copy(letter) else sources.get(letter.source)
            if record is None:
                self.done.gone[topic] += 1
                continue
            headers = tuple((name, value) for name, value in record.headers if name not in OWN)
            outgoing.setdefault(topic, []).append(Outgoing(record.key, record.value, headers, partition))
        for topic, records in outgoing.items():
            if self._executes:
                sender = await self._sender(topic)
                await sender.add(records)
                await sender.flush()
            self.done.sent[topic] += len(records)

    async def _sender(self, topic: str) -> RecordSender:
        if topic not in self._senders:
            await self._client.existing([topic])
            sender = self._senders[topic] = RecordSender(self._client, topic, SendOptions())
            await sender.start()
        return self._senders[topic]

    def _is_new(self, source: Source) -> bool:
        if source in self._seen:
            return False
        self._seen[source] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return True

    async def _commit(self, before: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Commit the positions, unless another redrive has changed them, because both would send the same records."""
        if await group_facts.committed(self._client, self._group) != before:
            raise CommandFailed(
                f"another redrive of the same dead letters is running: the offsets of {self._group} have changed; "
                "the last page was sent by both"
            )
        places = {place: max(at, before.get(place, 0)) for place, at in self._reader.places.items()}
        await group_facts.commit(self._client, self._group, places)
        return {**before, **places}
