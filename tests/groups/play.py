"""Runs a script against the group machine and shows the results, line by line.

A line is `@MS VERB ARGUMENT... NAME=VALUE...`; times are since the start, and the machine runs at its deadlines. The
indented lines below it are the responses to all clients and the records of this step. Member ids consist of the
client's name and a counter.
"""

from __future__ import annotations

from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.classic.records import read_group, read_group_id
from kpybroker.groups.classic.subscription import build_assignment, read_assignment, read_subscription
from kpybroker.groups.consumer.group import MemberState
from kpybroker.groups.consumer.records import KINDS
from kpybroker.groups.ground.commands import (
    CommitOffsets,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    DescribeConsumerGroup,
    DescribeGroup,
    DropTopics,
    FetchOffsets,
    Heartbeat,
    Leave,
    ListGroups,
    PartitionCommit,
)
from kpybroker.groups.ground.record_keys import GROUP_METADATA, kind_of
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.offsets.records import read_commit
from kpybroker.machine.contract import Stored
from kpybroker.wire.codec.codec import build
from kpybroker.wire.rpc import (
    consumer_group_describe,
    consumer_group_heartbeat,
    describe_groups,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from kpybroker.wire.stored import consumer_group as stored
from kpybroker.wire.stored.consumer_protocol import ConsumerProtocolSubscription, TopicPartition
from kpybroker.wire.stored.prefixed import parse_stored
from tests.groups.stage import START_MS, Stage, join, sync

TOPIC_ID = bytes(range(16))
MODERN: dict[int, tuple[str, Any, Any]] = {
    3: ("epoch", stored.ConsumerGroupMetadataKey, stored.ConsumerGroupMetadataValue),
    5: ("member", stored.ConsumerGroupMemberMetadataKey, stored.ConsumerGroupMemberMetadataValue),
    6: (
        "target epoch",
        stored.ConsumerGroupTargetAssignmentMetadataKey,
        stored.ConsumerGroupTargetAssignmentMetadataValue,
    ),
    7: ("target", stored.ConsumerGroupTargetAssignmentMemberKey, stored.ConsumerGroupTargetAssignmentMemberValue),
    8: ("current", stored.ConsumerGroupCurrentMemberAssignmentKey, stored.ConsumerGroupCurrentMemberAssignmentValue),
    16: ("regex", stored.ConsumerGroupRegularExpressionKey, stored.ConsumerGroupRegularExpressionValue),
}
"""The records of consumer groups by kind: a name, key and value."""


def play(script: str) -> str:
    """The script with the current responses."""
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
    """One run. It keeps track of the client of each ticket."""

    def __init__(self, settings: GroupSettings) -> None:
        self.stage = Stage(settings)
        self.names: dict[int, str] = {}

    def line(self, line: str) -> list[str]:
        when, verb, *words = line.split()
        written = len(self.stage.log)
        answers = self.stage.wait(START_MS + int(when[1:]) - self.stage.now_ms)
        if verb == "restart":
            self.stage.restart()
        elif verb == "topic":
            self.stage.topic(words[0], int(words[1]))
        elif verb == "no-topic":
            self.stage.drop_topic(words[0])
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
        if "subscribes" in given:
            protocols = (("range", _subscription(given)),)
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

    def _hb(self, plain: list[str], given: dict[str, str]) -> tuple[str, Any]:
        """A heartbeat of the consumer protocol: the member, the epoch, and other given fields. `may` names the topics
        that the authorizer lets the member describe."""
        member_id, epoch = plain[0], int(plain[1])
        request = consumer_group_heartbeat.Request(
            group_id=given.get("group", "g"),
            member_id=member_id,
            member_epoch=epoch,
            instance_id=given.get("instance"),
            rebalance_timeout_ms=int(given.get("rebalance", "-1" if epoch else "20000")),
            server_assignor=given.get("assignor"),
            subscribed_topic_regex=given.get("regex"),
        )
        topics = given.get("topics", None if epoch or "regex" in given else "t")
        if topics is not None:
            request.subscribed_topic_names = [each for each in topics.split(",") if each]
        owned = given.get("owns", None if epoch else "")
        if owned is not None:
            request.topic_partitions = [self._owned(each) for each in owned.split(",") if each]
        may = given.get("may")
        rights = None if may is None else set(may.split(",")).__contains__
        return member_id, ConsumerHeartbeat(request, given.get("client", "c"), "/127.0.0.1", rights)

    def _owned(self, said: str) -> consumer_group_heartbeat.TopicPartitions:
        name, _, partitions = said.partition(":")
        topic = self.stage.image.topic(name)
        assert topic is not None
        return consumer_group_heartbeat.TopicPartitions(
            topic_id=topic.id, partitions=[int(each) for each in partitions.split("+")]
        )

    def _who(self, _: list[str], given: dict[str, str]) -> tuple[str, Any]:
        return "who", DescribeConsumerGroup(given.get("group", "g"))

    def _sync(self, plain: list[str], given: dict[str, str]) -> tuple[str, Any]:
        pairs = (each.split(":") for each in given.get("give", "").split(",") if each)
        assignments = {member: data.encode() for member, data in pairs}
        for each in (each for each in given.get("assigns", "").split(",") if each):
            member_id, topic, partitions = each.split(":")
            assignments[member_id] = build_assignment(0, {topic: [int(number) for number in partitions.split("+")]})
        command = sync(
            plain[0],
            int(plain[1]),
            instance=given.get("instance"),
            assignments=assignments,
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
    """A response in one line."""
    match answer:
        case KafkaError():
            return answer.code.name
        case ErrorCode():
            return answer.name
        case join_group.Response():
            return _joined(answer)
        case sync_group.Response():
            code = ErrorCode(answer.error_code)
            return code.name if code else f"assigned {answer.protocol_name} {_given(bytes(answer.assignment))!r}"
        case describe_groups.DescribedGroup():
            members = [
                f"{each.member_id}({_metadata(bytes(each.member_metadata))}={_given(bytes(each.member_assignment))})"
                for each in answer.members
            ]
            return " ".join([answer.group_state, answer.protocol_type or "-", answer.protocol_data or "-", *members])
        case consumer_group_heartbeat.Response():
            return _heard(answer)
        case consumer_group_describe.DescribedGroup():
            return _consumers(answer)
        case frozenset():
            return f"kept {sorted(answer)}"
        case list():
            return ", ".join(_item(each) for each in answer) or "nothing"
    return repr(answer)


def _subscription(given: dict[str, str]) -> bytes:
    """The subscription of a classic consumer; with `owns`, in the version that contains the owned partitions."""
    said = ConsumerProtocolSubscription(topics=given["subscribes"].split(","))
    version = 0
    if "owns" in given:
        version = 2
        topic, _, partitions = given["owns"].partition(":")
        owned = [TopicPartition(topic=topic, partitions=[int(each) for each in partitions.split("+")])] if topic else []
        said.owned_partitions, said.generation_id = owned, int(given["generation"])
    return version.to_bytes(2, "big") + build(said, version)


def _given(assignment: bytes) -> str:
    """A readable assignment: the topics of a consumer's assignment, or the plain text that a script uses."""
    if not assignment.startswith(b"\0"):
        return assignment.decode()
    topics = read_assignment(assignment).partitions.items()
    return ",".join(f"{name}:{'+'.join(map(str, partitions))}" for name, partitions in topics) or "nothing"


def _metadata(data: bytes) -> str:
    return ",".join(read_subscription(data).topics) if data.startswith(b"\0") else data.decode()


def _consumers(group: consumer_group_describe.DescribedGroup) -> str:
    members = [
        f"{each.member_id}@{each.member_epoch}({_topics(each.assignment)}->{_topics(each.target_assignment)})"
        + ("classic" if each.member_type == 0 else "")
        for each in group.members
    ]
    words = [group.group_state, f"epoch={group.group_epoch}", f"assigned={group.assignment_epoch}", group.assignor_name]
    return " ".join([*words, *members])


def _topics(assignment: consumer_group_describe.Assignment) -> str:
    return ",".join(f"{each.topic_name}:{'+'.join(map(str, each.partitions))}" for each in assignment.topic_partitions)


def _heard(answer: consumer_group_heartbeat.Response) -> str:
    if answer.assignment is None:
        return f"epoch {answer.member_epoch}"
    has = [
        f"{bytes(each.topic_id).decode().removeprefix('topic ').rstrip('.')}:{'+'.join(map(str, each.partitions))}"
        for each in answer.assignment.topic_partitions
    ]
    return f"epoch {answer.member_epoch} has {','.join(has) or 'nothing'}"


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
    members = [f"{each.member_id}({_metadata(bytes(each.metadata))})" for each in answer.members]
    skip = ["skip"] if answer.skip_assignment else []
    words = [f"generation {answer.generation_id}", f"{answer.protocol_name}", f"leader={answer.leader}"]
    return " ".join([*words, f"you={answer.member_id}", *skip, *members])


def shown_record(record: Stored) -> str:
    """A record in one line, parsed from its bytes."""
    plain = Stored(record.key, record.value, record.timestamp_ms, record.offset)
    assert plain.key is not None
    if kind_of(plain.key) in KINDS:
        return _shown_modern(plain)
    if kind_of(plain.key) != GROUP_METADATA:
        group_id, (topic, partition), committed = read_commit(plain)
        what = "nothing" if committed is None else str(committed.offset)
        return f"{group_id} {topic}-{partition} = {what}"
    group_id = read_group_id(plain.key)
    if plain.value is None:
        return f"{group_id} is no more"
    group = read_group(group_id, plain.value, 0)
    members = [f"{each.member_id}={_given(each.assignment)!r}" for each in group.members.values()]
    return " ".join([group_id, f"generation {group.generation}", str(group.protocol), str(group.leader), *members])


def _shown_modern(record: Stored) -> str:
    """One record of a consumer group, by its kind, in short form."""
    assert record.key is not None
    name, key_class, value_class = MODERN[kind_of(record.key)]
    key = parse_stored(key_class, record.key)
    who = [getattr(key, field) for field in ("member_id", "regular_expression") if hasattr(key, field)]
    words = [key.group_id, name, *who]
    if record.value is None:
        return " ".join([*words, "is no more"])
    value = parse_stored(value_class, record.value)
    match value:
        case stored.ConsumerGroupMetadataValue():
            words.append(str(value.epoch))
        case stored.ConsumerGroupTargetAssignmentMetadataValue():
            words.append(str(value.assignment_epoch))
        case stored.ConsumerGroupMemberMetadataValue():
            words += [",".join(value.subscribed_topic_names) or "-", value.subscribed_topic_regex or ""]
            words += ["classic"] if value.classic_member_metadata is not None else []
        case stored.ConsumerGroupTargetAssignmentMemberValue():
            words.append(_places(value.topic_partitions))
        case stored.ConsumerGroupCurrentMemberAssignmentValue():
            words += [f"{value.previous_member_epoch}->{value.member_epoch}", MemberState(value.state).name.lower()]
            words += [_places(value.assigned_partitions)]
            if value.partitions_pending_revocation:
                words.append(f"gives up {_places(value.partitions_pending_revocation)}")
        case stored.ConsumerGroupRegularExpressionValue():
            words.append(",".join(value.topics) or "nothing")
    return " ".join(word for word in words if word)


def _places(topics: Any) -> str:
    names = [bytes(each.topic_id).decode().removeprefix("topic ").rstrip(".") for each in topics]
    found = [f"{name}:{'+'.join(map(str, each.partitions))}" for name, each in zip(names, topics, strict=True)]
    return ",".join(found) or "nothing"
