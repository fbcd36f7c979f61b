"""A group machine for tests, with a log in memory, a clock that the test moves, and a list of all responses."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from kpybroker.errors import KafkaError
from kpybroker.groups.ground.commands import Join, Sync
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.machine import GroupMachine
from kpybroker.machine.contract import Moment, Stored, Tick
from kpybroker.metadata.image import Image
from kpybroker.wire.rpc import join_group, sync_group
from kpybroker.wire.stored import metadata as stored

START_MS = 1_000_000


def in_turn() -> Callable[[], str]:
    """Ids 1, 2, 3, ..."""
    count = 0

    def next_id() -> str:
        nonlocal count
        count += 1
        return str(count)

    return next_id


class Stage:
    """Decides, stores the records and applies them, as a Runner does, but without waiting."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings(first_join_pause_ms=0)
        self.new_id = in_turn()
        self.now_ms = START_MS
        self.ahead_ms = 0
        """The difference between the wall clock and the steady clock."""
        self.log: list[Stored] = []
        self.image = Image()
        """The image of existing topics."""
        self.machine = GroupMachine(self.settings, self.new_id, lambda: self.image)
        self.tickets = 0
        self.commands: dict[int, Any] = {}
        """Ticket -> command, without ticks."""

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, self.now_ms + self.ahead_ms)

    def ask(self, command: Any) -> tuple[int, list[tuple[int, Any]], list[Stored]]:
        """Run one step. Returns the caller's ticket, all responses that it led to, and the records."""
        self.tickets += 1
        ticket: Any = self.tickets
        if not isinstance(command, Tick):
            self.commands[ticket] = command
        outcome = self.machine.decide(ticket, command, self.now)
        for record in outcome.records:
            record.offset = len(self.log)
            self.log.append(record)
            self.machine.apply(record)
        answers: Any = outcome.answers
        return ticket, answers, outcome.records

    def answer(self, command: Any) -> Any:
        """Run a command that does not wait. Returns its response; raises KafkaError if it is refused."""
        ticket, answers, _ = self.ask(command)
        found = dict(answers)[ticket]
        if isinstance(found, KafkaError):
            raise found
        return found

    def wait(self, for_ms: int) -> list[tuple[int, Any]]:
        """Let time pass, and run the machine at each of its deadlines."""
        end_ms = self.now_ms + for_ms
        answers: list[tuple[int, Any]] = []
        while (deadline_ms := self.machine.deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            ticket, answered, _ = self.ask(Tick())
            answers += [each for each in answered if each[0] != ticket]
        self.now_ms = end_ms
        return answers

    def topic(self, name: str, partitions: int) -> bytes:
        """Create a topic with this many partitions, or add partitions to it; its id is derived from its name."""
        known = self.image.topic(name)
        topic_id = (b"topic " + name.encode()).ljust(16, b".")
        if len(topic_id) > 16:
            topic_id = blake2b(topic_id, digest_size=16).digest()
        new: list[Any] = [] if known else [stored.TopicRecord(name=name, topic_id=topic_id)]
        for index in range(len(known.partitions) if known else 0, partitions):
            new.append(stored.PartitionRecord(partition_id=index, topic_id=topic_id, replicas=[1], isr=[1], leader=1))
        self.image = self.image.apply(new, self.image.offset + len(new), 0)
        return topic_id

    def drop_topic(self, name: str) -> None:
        """Delete the topic."""
        known = self.image.topic(name)
        assert known is not None
        self.image = self.image.apply([stored.RemoveTopicRecord(topic_id=known.id)], self.image.offset + 1, 0)

    def replayed(self, log: list[Stored] | None = None) -> GroupMachine:
        """Another machine, built only from the bytes of the same log, or of the given log."""
        machine = GroupMachine(self.settings, self.new_id, lambda: self.image)
        for record in self.log if log is None else log:
            machine.apply(Stored(record.key, record.value, record.timestamp_ms, record.offset))
        return machine

    def restart(self) -> None:
        """Drop the coordinator and all waiting requests; another coordinator replays the log."""
        self.machine = self.replayed()
        self.ask(Tick())


def join(
    member_id: str = "",
    *,
    group: str = "g",
    version: int = 9,
    client: str = "c",
    instance: str | None = None,
    protocols: tuple[tuple[str, bytes], ...] = (("range", b""),),
    protocol_type: str = "consumer",
    session_ms: int = 10_000,
    rebalance_ms: int = 60_000,
) -> Join:
    """A JoinGroup as a client of `version` sends it."""
    request = join_group.Request(
        group_id=group,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[join_group.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
    )
    return Join(request, client, "/127.0.0.1", version >= 4, version >= 9)


def sync(
    member_id: str,
    generation: int,
    *,
    group: str = "g",
    instance: str | None = None,
    assignments: dict[str, bytes] | None = None,
    protocol_type: str | None = None,
    protocol: str | None = None,
) -> Sync:
    """A SyncGroup, with assignments if the member is the leader."""
    return Sync(
        sync_group.Request(
            group_id=group,
            member_id=member_id,
            generation_id=generation,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[
                sync_group.SyncGroupRequestAssignment(member_id=each, assignment=data)
                for each, data in (assignments or {}).items()
            ],
        )
    )
