"""Plays a script against the group machine and says what came of it, line by line.

A line is `@MS VERB ARGUMENT... NAME=VALUE...`; times are since the start, and time that passes wakes the machine. Below
it stand the answers it led to, for whomever, and the records it wrote, indented. Members are named by their ids, which
are made of the client's name and a number that counts up.
"""

from __future__ import annotations

from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    DropTopics,
    FetchOffsets,
    Heartbeat,
    Leave,
    ListGroups,
    PartitionCommit,
)
from kpybroker.groups.records import GROUP_METADATA, kind_of, read_commit, read_group, read_group_id
from kpybroker.groups.settings import GroupSettings
from kpybroker.machine import Stored
from kpybroker.wire.rpc import describe_groups, join_group, leave_group, list_groups, sync_group
from tests.groups.stage import START_MS, Stage, join, sync

TOPIC_ID = bytes(range(16))


def play(script: str) -> str:
    """The script with the answers in place, as they are now."""
    lines = [line for line in script.splitlines() if not line.startswith("  ")]
    settings = {"first_join_pause_ms": 0}
    shown = []
    player: Player | None = None
    for line in lines:
        shown.append(line)
        if line.startswith("set "):
            name, _, value = line.removeprefix("set ").partition("=")
            settings[name] = int(value)
        elif line.startswith("@"):
            player = player or Player(GroupSettings(**settings))
            shown += [f"  {said}" for said in player.line(line)]
    return "\n".join(shown) + "\n"


class Player:
    """One play; knows whose answer each ticket is."""

    def __init__(self, settings: GroupSettings) -> None:
        self.stage = Stage(settings)
        self.names: dict[int, str] = {}

    def line(self, line: str) -> list[str]:
        when, verb, *words = line.split()
        written = len(self.stage.log)
        answers = self.stage.wait(START_MS + int(when[1:]) - self.stage.now_ms)
        if verb == "restart":
            self.stage.restart()
        elif verb != "wait":
            given = dict(word.split("=", 1) for word in words if "=" in word)
            plain = [word for word in words if "=" not in word]
            name, command = getattr(self, f"_{verb}")(plain, given)
            ticket, answered, _ = self.stage.ask(command)
            self.names[ticket] = name
            answers = answers + answered
        said = [f"{self.names[ticket]}: {shown(answer)}" for ticket, answer in answers]
        return said + [f"written: {shown_record(record)}" for record in self.stage.log[written:]]

    def _join(self, plain: list[str], given: dict[str, str]) -> tuple[str, Any]:
        member_id = plain[0] if plain else ""
        client = given.get("client", "c")
        protocols = tuple(
            (name, data.encode())
            for name, _, data in (each.partition(":") for each in given.get("protocols", "range").split(",") if each)
        )
        command = join(
            member_id,
            group=given.get("group", "g"),
            version=int(given.get("v", "9")),
            client=client,
            instance=given.get("instance"),
            protocols=protocols,
            protocol_type=given.get("type", "consumer"),
            session_ms=int(given.get("session", "10000")),
            rebalance_ms=int(given.get("rebalance", "60000")),
        )
        return member_id or given.get("instance") or client, command

    def _sync(self, plain: list[str], given: dict[str, str]) -> tuple[str, Any]:
        pairs = (each.split(":") for each in given.get("give", "").split(",") if each)
        command = sync(
            plain[0],
            int(plain[1]),
            instance=given.get("instance"),
            assignments={member: data.encode() for member, data in pairs},
            protocol_type=given.get("type"),
            protocol=given.get("protocol"),
        )
        return plain[0], command

    def _beat(self, plain: list[str], given: dict[str, str]) -> tuple[str, Any]:
        return plain[0], Heartbeat(given.get("group", "g"), plain[0], given.get("instance"), int(plain[1]))

    def _leave(self, plain: list[str], given: dict[str, str]) -> tuple[str, Any]:
        members = [leave_group.MemberIdentity(member_id=each) for each in plain]
        if "instance" in given:
            members = [leave_group.MemberIdentity(member_id="".join(plain), group_instance_id=given["instance"])]
        return "leave", Leave("g", members)

    def _commit(self, plain: list[str], given: dict[str, str]) -> tuple[str, Any]:
        member_id = plain[0] if plain else ""
        commits = [
            (topic, TOPIC_ID, [PartitionCommit(0, int(offset), -1, given.get("metadata", ""))])
            for topic, offset in (each.split(":") for each in given["to"].split(","))
        ]
        command = CommitOffsets(
            given.get("group", "g"),
            member_id,
            given.get("instance"),
            int(given.get("generation", "-1")),
            int(given.get("retention", "-1")),
            commits,
            int(given.get("v", "9")) >= 9,
        )
        return f"commit {member_id}".strip(), command

    def _fetch(self, plain: list[str], given: dict[str, str]) -> tuple[str, Any]:
        return "fetch", FetchOffsets(given.get("group", "g"), [(topic, [0]) for topic in plain] or None)

    def _forget(self, plain: list[str], given: dict[str, str]) -> tuple[str, Any]:
        return "forget", DeleteOffsets(given.get("group", "g"), [(topic, [0]) for topic in plain])

    def _drop(self, plain: list[str], _: dict[str, str]) -> tuple[str, Any]:
        return "drop", DropTopics(dict.fromkeys(plain, TOPIC_ID))

    def _describe(self, _: list[str], given: dict[str, str]) -> tuple[str, Any]:
        return "describe", DescribeGroup(given.get("group", "g"))

    def _list(self, plain: list[str], given: dict[str, str]) -> tuple[str, Any]:
        return "list", ListGroups(frozenset(plain), frozenset(given.get("types", "").split(",")) - {""})

    def _delete(self, _: list[str], given: dict[str, str]) -> tuple[str, Any]:
        return "delete", DeleteGroup(given.get("group", "g"))


def shown(answer: Any) -> str:
    """An answer in one line."""
    match answer:
        case KafkaError():
            return answer.code.name
        case ErrorCode():
            return answer.name
        case join_group.Response():
            return _joined(answer)
        case sync_group.Response():
            code = ErrorCode(answer.error_code)
            return code.name if code else f"assigned {answer.protocol_name} {bytes(answer.assignment).decode()!r}"
        case describe_groups.DescribedGroup():
            members = [
                f"{each.member_id}({bytes(each.member_metadata).decode()}={bytes(each.member_assignment).decode()})"
                for each in answer.members
            ]
            return " ".join([answer.group_state, answer.protocol_type or "-", answer.protocol_data or "-", *members])
        case frozenset():
            return f"kept {sorted(answer)}"
        case list():
            return ", ".join(_item(each) for each in answer) or "nothing"
    return repr(answer)


def _item(each: Any) -> str:
    if isinstance(each, list_groups.ListedGroup):
        return f"{each.group_id} {each.protocol_type or '-'} {each.group_state} {each.group_type}"
    if isinstance(each, tuple):
        topic, partitions = each
        return " ".join(f"{topic}-{number}:{found.offset if found else 'none'}" for number, found in partitions)
    return ErrorCode(each).name


def _joined(answer: join_group.Response) -> str:
    code = ErrorCode(answer.error_code)
    if code:
        return f"{code.name} {answer.member_id}".strip()
    members = [f"{each.member_id}({bytes(each.metadata).decode()})" for each in answer.members]
    skip = ["skip"] if answer.skip_assignment else []
    words = [f"generation {answer.generation_id}", f"{answer.protocol_name}", f"leader={answer.leader}"]
    return " ".join([*words, f"you={answer.member_id}", *skip, *members])


def shown_record(record: Stored) -> str:
    """A record in one line, as its bytes tell it."""
    plain = Stored(record.key, record.value, record.timestamp_ms, record.offset)
    assert plain.key is not None
    if kind_of(plain.key) != GROUP_METADATA:
        commit = read_commit(plain)
        what = "nothing" if commit.committed is None else str(commit.committed.offset)
        return f"{commit.group_id} {commit.place[0]}-{commit.place[1]} = {what}"
    group_id = read_group_id(plain.key)
    if plain.value is None:
        return f"{group_id} is no more"
    group = read_group(group_id, plain.value, 0)
    members = [f"{each.member_id}={each.assignment.decode()!r}" for each in group.members.values()]
    return " ".join([group_id, f"generation {group.generation}", str(group.protocol), str(group.leader), *members])
