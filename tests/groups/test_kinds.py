"""Tests that a new kind of group needs only a class and its registration, and no change of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    Heartbeat,
    Join,
    Leave,
    ListGroups,
    PartitionCommit,
    Sync,
)
from kpybroker.groups.ground.kind import Decision, GroupKind, KindContext, Usage
from kpybroker.groups.ground.step import Step
from kpybroker.groups.kinds import KINDS
from kpybroker.groups.machine import GroupMachine
from kpybroker.groups.offsets.commits import commit
from kpybroker.machine.contract import Stored
from kpybroker.wire.rpc import join_group, leave_group, sync_group
from kpybroker.wire.rpc.list_groups import ListedGroup
from tests.groups.stage import Stage, in_turn

QUEUE_RECORD = 99
RETENTION_MS = 7 * 24 * 3600 * 1000


def key_of(group_id: str) -> bytes:
    return QUEUE_RECORD.to_bytes(2, "big") + group_id.encode()


@dataclass(frozen=True)
class Enter:
    """A member enters a queue group, or leaves it."""

    group_id: str
    enters: bool = True


class QueueGroup:
    """A group whose members have no names and read topic t; those of the group r read its retired partitions."""

    def __init__(self, group_id: str, members: int) -> None:
        self.group_id = group_id
        self.members = members
        self._topic = "t.retired" if group_id == "r" else "t"

    @property
    def may_expire(self) -> bool:
        return not self.members

    def usage(self) -> Usage:
        return Usage(frozenset({self._topic}) if self.members else frozenset(), None)

    def subscribes(self, topic: str) -> bool:
        return bool(self.members) and topic == self._topic

    def check_delete(self) -> None:
        if self.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete_offsets(self) -> None:
        pass


class QueueGroups(GroupKind):
    """A kind of group that does not exist in the product."""

    name = "queue"
    record_kinds = frozenset({QUEUE_RECORD})

    def __init__(self, context: KindContext) -> None:
        self.stored: dict[str, int] = {}
        self.groups: dict[str, QueueGroup] = {}
        self._kinds, self._settings = context.kinds, context.settings

    def decisions(self) -> Mapping[type, Decision]:
        return {Enter: self._enter}

    def _enter(self, ticket: Any, command: Enter, step: Step) -> None:
        group = self.groups.get(command.group_id)
        if group is None:
            self._kinds.make_room(command.group_id, self, step)
            group = self.groups[command.group_id] = QueueGroup(command.group_id, 0)
        group.members += 1 if command.enters else -1
        step.write(Stored(key_of(command.group_id), b"%d" % group.members))
        step.answer(ticket, group.members)

    @staticmethod
    def check_record(kind: int, key: bytes, value: bytes | None) -> None:
        key[2:].decode()

    def apply(self, kind: int, key: bytes, value: bytes | None) -> None:
        assert kind == QUEUE_RECORD
        group_id = key[2:].decode()
        if value is None:
            self.stored.pop(group_id, None)
        else:
            self.stored[group_id] = int(value)

    def wake(self, step: Step) -> None:
        for group_id, members in self.stored.items():
            self.groups[group_id] = QueueGroup(group_id, members)

    def start_over(self, step: Step) -> None:
        self.groups.clear()

    def commit(self, command: CommitOffsets, step: Step) -> list[ErrorCode]:
        if not self.groups[command.group_id].members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the queue is empty")
        return commit(command, self._settings, step)

    def check_fetch(self, command: FetchOffsets) -> None:
        if command.member_id is not None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "members have no names")

    def row(self, group_id: str) -> ListedGroup:
        return ListedGroup(group_id=group_id, protocol_type="queue", group_state="Stable", group_type="queue")

    def forget(self, group_id: str, step: Step) -> None:
        step.write(Stored(key_of(group_id), None))
        del self.groups[group_id]

    def gives_way(self, group_id: str, to: GroupKind) -> bool:
        return not self.groups[group_id].members


class QueueStage(Stage):
    """A stage whose machine has one additional kind of group."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = self._with_queues()

    def _with_queues(self) -> GroupMachine:
        return GroupMachine(self.settings, in_turn(), lambda: self.image, (*KINDS, QueueGroups))

    def begun_again(self) -> GroupMachine:
        machine = self._with_queues()
        for record in self.log:
            machine.apply(record)
        return machine


def commit_of(group_id: str, topic: str = "t") -> CommitOffsets:
    return CommitOffsets(group_id, "", None, -1, -1, [(topic, bytes(16), [PartitionCommit(0, 7, -1, "")])], True)


def join_of(group_id: str, session_timeout_ms: int = 10_000) -> Join:
    protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=b"")
    request = join_group.Request(
        group_id=group_id, session_timeout_ms=session_timeout_ms, protocol_type="consumer", protocols=[protocol]
    )
    return Join(request, "c", "/127.0.0.1", False, False)


def code_of(stage: Stage, command: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        stage.answer(command)
    return refused.value.code


def test_a_group_of_another_kind_has_offsets_like_any_other() -> None:
    stage = QueueStage()
    assert stage.answer(Enter("q")) == 1
    assert stage.answer(commit_of("q")) == [ErrorCode.NONE]
    assert stage.answer(commit_of("q", "u")) == [ErrorCode.NONE]
    assert [topic for topic, _ in stage.answer(FetchOffsets("q", None))] == ["t", "u"]
    assert code_of(stage, FetchOffsets("q", None, "m", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.answer(DeleteOffsets("q", [("t", [0]), ("u", [0])])) == frozenset("t")
    assert [topic for topic, _ in stage.answer(FetchOffsets("q", None))] == ["t"]
    assert stage.answer(Enter("q", enters=False)) == 0
    assert code_of(stage, commit_of("q")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_it_is_listed_deleted_and_replayed() -> None:
    stage = QueueStage()
    stage.answer(Enter("q"))
    stage.answer(commit_of("classic"))
    listed = {each.group_id: each.group_type for each in stage.answer(ListGroups())}
    assert listed == {"q": "queue", "classic": "classic"}
    assert [each.group_id for each in stage.answer(ListGroups(types=frozenset({"queue"})))] == ["q"]
    assert code_of(stage, DeleteGroup("q")) is ErrorCode.NON_EMPTY_GROUP
    again = stage.begun_again()
    assert again.kinds["queue"].stored == stage.machine.kinds["queue"].stored == {"q": 1}
    stage.answer(Enter("q", enters=False))
    assert stage.answer(DeleteGroup("q")) is False
    assert code_of(stage, DeleteGroup("q")) is ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.begun_again().kinds["queue"].stored == {}


def test_the_classic_calls_do_not_reach_it() -> None:
    stage = QueueStage()
    stage.answer(Enter("q"))
    assert stage.answer(join_of("q")).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert stage.answer(Sync(sync_group.Request(group_id="q"))).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.answer(Heartbeat("q", "m", None, 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.answer(Leave("q", [leave_group.MemberIdentity(member_id="m")])) == [ErrorCode.UNKNOWN_MEMBER_ID]
    stage.answer(Enter("q", enters=False))
    stage.ask(join_of("q"))
    assert "q" in stage.machine.kinds["classic"].groups, "an empty group gives way"
    assert "q" not in stage.machine.kinds["queue"].groups


def test_offsets_expire_and_the_group_after_them() -> None:
    stage = QueueStage()
    stage.answer(Enter("q"))
    stage.answer(commit_of("q"))
    stage.wait(2 * RETENTION_MS)
    assert stage.answer(FetchOffsets("q", None)), "the topic is in use"
    stage.answer(Enter("q", enters=False))
    stage.wait(2 * RETENTION_MS)
    assert not stage.answer(FetchOffsets("q", None))
    assert "q" not in stage.machine.kinds["queue"].groups


def test_offsets_of_a_topic_are_in_use_while_its_retired_partitions_are_read() -> None:
    """They are stored for the topic."""
    stage = QueueStage()
    stage.answer(Enter("r"))
    stage.answer(commit_of("r"))
    stage.answer(commit_of("r", "u"))
    assert stage.answer(DeleteOffsets("r", [("t", [0])])) == frozenset("t")
    stage.wait(2 * RETENTION_MS)
    assert [topic for topic, _ in stage.answer(FetchOffsets("r", None))] == ["t"]


def test_a_refused_step_starts_every_kind_over() -> None:
    stage = QueueStage()
    stage.answer(Enter("q"))
    stage.tickets += 1
    stage.machine.decide(stage.tickets, Enter("q"), stage.now)  # type: ignore[arg-type]  # the log refuses its record
    assert stage.answer(Enter("q")) == 2, "the step that was refused has not counted"


def test_every_record_is_read_by_one_kind() -> None:
    records = [record for kind in KINDS for record in kind.record_kinds]
    assert len(records) == len(set(records))
