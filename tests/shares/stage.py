"""A share machine for tests: a log in memory, a clock that the test moves, and topics that are created and deleted."""

from __future__ import annotations

from typing import Any

from kpybroker.errors import KafkaError
from kpybroker.machine.contract import Moment, Stored, Tick
from kpybroker.metadata.image import Image
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.machine import ShareMachine, ShareSettings
from kpybroker.wire.stored import metadata as stored

TOPICS = [bytes(15) + bytes([number]) for number in (1, 2, 3)]
START_MS = 1_000_000


def image_of(topics: list[bytes]) -> Image:
    """Topics with these ids, of four partitions each."""
    records: list[Any] = []
    for topic_id in topics:
        records.append(stored.TopicRecord(name=f"t{topic_id[-1]}", topic_id=topic_id))
        records += [
            stored.PartitionRecord(partition_id=index, topic_id=topic_id, replicas=[1], isr=[1], leader=1)
            for index in range(4)
        ]
    return Image().apply(records, offset=len(records), epoch=1)


class Stage:
    """Decides, stores the records and applies them, as a Runner does, but without waiting."""

    def __init__(self, settings: ShareSettings | None = None) -> None:
        self.settings = settings or ShareSettings()
        self.image = image_of(TOPICS)
        self.now_ms = START_MS
        self.log: list[Stored] = []
        self.start = 0
        self.machine = self.empty()
        self.ask(Tick())

    def empty(self) -> ShareMachine:
        return ShareMachine(self.settings, lambda: self.image)

    @property
    def end(self) -> int:
        return self.start + len(self.log)

    def ask(self, command: Any) -> Any:
        """Run one step. Returns the answer or the error."""
        ticket: Any = object()
        try:
            outcome = self.machine.decide(ticket, command, Moment(self.now_ms, self.now_ms + 7))
        except KafkaError as refusal:
            return refusal
        for record in outcome.records:
            record.appended_at(self.end)
            self.log.append(record)
            self.machine.apply(record)
        [(answered, answer)] = outcome.answers
        assert answered is ticket
        return answer

    def code(self, command: Any) -> int:
        """The error code of the answer."""
        answer = self.ask(command)
        return int(answer.code) if isinstance(answer, KafkaError) else 0

    def wait(self, for_ms: int) -> None:
        """Advance the clock, and run the machine at each of its deadlines."""
        end_ms = self.now_ms + for_ms
        while (deadline_ms := self.machine.deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.ask(Tick())
        self.now_ms = end_ms

    def prune(self, to: int) -> None:
        """Delete the records below an offset."""
        assert self.start <= to <= self.end
        del self.log[: to - self.start]
        self.start = to

    def replayed(self) -> ShareMachine:
        """Another machine with the same log, built from its bytes alone."""
        machine = self.empty()
        for record in self.log:
            machine.apply(Stored(record.key, record.value, record.timestamp_ms, record.offset))
        return machine

    def restart(self) -> None:
        """Replace the coordinator by one that replays the log."""
        self.machine = self.replayed()
        self.ask(Tick())


def hard(machine: ShareMachine) -> Any:
    return machine.states, machine.snapshots


def key(topic: int = 0, partition: int = 0, group: str = "g") -> ShareKey:
    return ShareKey(group, TOPICS[topic], partition)
