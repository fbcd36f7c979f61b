"""Tests the invariants of the group machine: a replay produces the live state, and well-behaved members always reach a
common stable generation."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.classic.group import GroupState
from kpybroker.groups.classic.records import read_group
from kpybroker.groups.ground.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DropTopics,
    FetchOffsets,
    Heartbeat,
    Leave,
    ListGroups,
    PartitionCommit,
)
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.machine import GroupMachine
from kpybroker.machine.contract import Stored, Tick
from kpybroker.wire.rpc import join_group, leave_group, sync_group
from tests.compacted import compacted
from tests.groups.members import Town
from tests.groups.stage import Stage, join, sync

TOPIC_ID = bytes(range(16))


def commit(member_id: str = "", generation: int = -1, *, group: str = "g", **topics: int) -> CommitOffsets:
    commits = [(topic, TOPIC_ID, [PartitionCommit(0, offset, -1, "")]) for topic, offset in topics.items()]
    return CommitOffsets(group, member_id, None, generation, -1, commits, True)


def hard(machine: GroupMachine) -> tuple[Any, ...]:
    return (
        machine.kinds["classic"].stored,
        {group: machine.offsets.of(group) for group in machine.offsets.groups()},
    )


def random_command(chance: Random, stage: Stage) -> Any:
    """Any command, with ids that usually exist."""
    group = chance.choice(["g", "g", "g", "h"])
    live = stage.machine.kinds["classic"].groups.get(group)
    ids = ["", "nobody"] if live is None else [*live.members, *live.members, *live.pending_join, "", "nobody"]
    member_id = chance.choice(ids)
    generation = (0 if live is None else live.generation) + chance.choice([0, 0, 0, 0, -1, 1])
    topics = {topic: chance.randrange(9) for topic in chance.sample("tuv", 2)}
    protocols = tuple((name, b"%d" % chance.randrange(2)) for name in chance.sample(["range", "rr"], 2))
    options = chance.randrange(20)
    if options < 7:
        instance = chance.choice([None, None, "one", "two"])
        return join(
            member_id,
            group=group,
            version=chance.choice([3, 5, 9]),
            instance=instance,
            protocols=protocols,
            session_ms=chance.choice([6_000, 30_000]),
            rebalance_ms=chance.choice([1_000, 20_000]),
        )
    if options < 12:
        return sync(member_id, generation, group=group, assignments=dict.fromkeys(ids, b"%d" % generation))
    match options:
        case 12 | 13:
            return commit(member_id, generation, group=group, **topics)
        case 14:
            return commit(group=group, **topics)
        case 15:
            return Heartbeat(group, member_id, None, generation)
        case 16:
            return Leave(group, [leave_group.MemberIdentity(member_id=member_id)])
        case 17:
            return DeleteOffsets(group, [(topic, [0, 1]) for topic in topics])
        case 18:
            return DeleteGroup(group)
    return DropTopics(dict.fromkeys(topics, TOPIC_ID))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_replay_equals_live(seed: int) -> None:
    chance = Random(seed)
    stage = Stage(GroupSettings(offsets_retention_ms=40_000, offsets_retention_check_interval_ms=10_000))
    for _ in range(150):
        if chance.random() < 0.3:
            stage.wait(chance.choice([1, 500, 3_000, 20_000]))
        if chance.random() < 0.02:
            stage.restart()
        stage.ask(random_command(chance, stage))
    assert hard(stage.replayed()) == hard(stage.machine)
    assert hard(stage.replayed(compacted(stage.log, chance))) == hard(stage.machine)
    for group_id, group in stage.machine.kinds["classic"].groups.items():
        if group.state in (GroupState.STABLE, GroupState.EMPTY) and group_id in stage.machine.kinds["classic"].stored:
            again = read_group(group_id, stage.machine.kinds["classic"].stored[group_id], 0)
            assert (again.state, again.generation, again.leader) == (group.state, group.generation, group.leader)
            assert [(m.member_id, m.instance_id, m.assignment) for m in again.members.values()] == [
                (m.member_id, m.instance_id, m.assignment) for m in group.members.values()
            ]
    assert all(group in stage.machine.kinds["classic"].groups for group in stage.machine.offsets.groups())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_every_ticket_is_answered_once(seed: int) -> None:
    """No request is lost: every waiting request has received its response when all timers have fired."""
    chance = Random(seed)
    stage = Stage()
    answered: list[int] = []
    for _ in range(100):
        answered += [ticket for ticket, _ in stage.wait(chance.choice([0, 0, 100, 5_000]))]
        answered += [ticket for ticket, _ in stage.ask(random_command(chance, stage))[1]]
    asked = stage.tickets
    answered += [ticket for ticket, _ in stage.wait(3_600_000) if ticket <= asked]
    assert len(answered) == len(set(answered))
    forgotten = set(range(1, asked + 1)) - set(answered)
    assert not [ticket for ticket in forgotten if ticket in stage.commands]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_well_behaved_members_come_to_rest_in_one_generation(seed: int) -> None:
    """Members join, leave, crash and return, and coordinators change. The invariants that `Town` checks hold all the
    time."""
    chance = Random(seed)
    delay_ms, pause_ms = chance.choice([(0, 0), (0, 5), (50, 5), (3_000, 5)])
    town = Town(chance, GroupSettings(group_initial_rebalance_delay_ms=delay_ms, first_join_pause_ms=pause_ms))
    for _ in range(120):
        town.disturb()
    town.settle()
    town.assert_at_rest()


def test_two_hundred_members_get_one_answer_each() -> None:
    """A join costs the same with any number of members, because only the leader's response lists all members."""
    stage = Stage()
    ids = [stage.answer(join(client=f"c{number}")).member_id for number in range(200)]
    answers: list[Any] = []
    for member_id in ids:
        answers += [answer for _, answer in stage.ask(join(member_id, protocols=(("range", b"x" * 50),)))[1]]
    assert [len(answer.members) for answer in answers] == [200] + [0] * 199
    assert {answer.generation_id for answer in answers} == {1}
    for member_id in ids[1:]:
        assert stage.ask(sync(member_id, 1))[1] == []
    given_out = dict.fromkeys(ids, b"mine")
    assigned = stage.ask(sync(ids[0], 1, assignments=given_out))[1]
    assert [bytes(answer.assignment) for _, answer in assigned] == [b"mine"] * 200


def refused(stage: Stage, command: Any) -> None:
    """The machine writes records, and the log refuses them."""
    ticket: Any = -1
    assert stage.machine.decide(ticket, command, stage.now).records
    assert stage.machine.deadline_ms() == 0  # the machine checks again at once


def test_after_a_refusal_of_the_log_the_machine_returns_to_the_stored_state() -> None:
    stage = Stage()
    member_id = stage.answer(join()).member_id
    stage.ask(join(member_id))
    stage.ask(sync(member_id, 1, assignments={member_id: b"first"}))
    stage.ask(join(member_id))
    before = hard(stage.machine)
    refused(stage, sync(member_id, 2, assignments={member_id: b"second"}))
    stage.wait(0)
    assert hard(stage.machine) == before
    assert stage.machine.kinds["classic"].groups["g"].state is GroupState.STABLE
    assert stage.machine.kinds["classic"].groups["g"].members[member_id].assignment == b"first"
    with pytest.raises(KafkaError, match="ILLEGAL_GENERATION"):
        stage.answer(commit(member_id, 2, t=1))
    assert stage.answer(join(member_id)).generation_id == 2


def test_parked_requests_are_refused_when_the_log_refuses() -> None:
    stage = Stage()
    stage.answer(join(client="a", version=3))
    parked, _, _ = stage.ask(join(client="b", version=3))
    refused(stage, commit(group="other", t=1))
    answers = dict(stage.wait(0))
    assert isinstance(answers[parked], join_group.Response)
    assert answers[parked].error_code == ErrorCode.NOT_COORDINATOR


def test_offsets_of_a_recreated_topic_stay() -> None:
    stage = Stage()
    stage.answer(commit(t=5))
    assert stage.answer(DropTopics({"t": bytes(16)[:-1] + b"\x07"})) is False
    assert stage.answer(FetchOffsets("g", None))[0][1][0][1].offset == 5
    assert stage.answer(DropTopics({"t": TOPIC_ID})) is False
    assert stage.answer(FetchOffsets("g", None)) == []


def many_offsets(stage: Stage) -> None:
    for number in range(2_000):
        stage.answer(commit(**{"t" * 200 + str(number): 1}))


def test_large_deletions_are_done_in_steps() -> None:
    stage = Stage()
    many_offsets(stage)
    steps = [len(stage.ask(DeleteGroup("g"))[2])]
    while list(stage.machine.kinds["classic"].groups):
        steps.append(len(stage.ask(DeleteGroup("g"))[2]))
    assert sum(steps) == 2_001
    assert max(steps) < 1_500
    assert hard(stage.replayed()) == hard(stage.machine)


def test_large_expiries_are_done_in_steps() -> None:
    stage = Stage(GroupSettings(offsets_retention_ms=1_000, offsets_retention_check_interval_ms=10_000))
    many_offsets(stage)
    stage.wait(9_999)
    stage.now_ms += 1
    steps = []
    while list(stage.machine.kinds["classic"].groups):
        steps.append(len(stage.ask(Tick())[2]))
    assert sum(steps) == 2_001
    assert max(steps) < 1_500


def test_groups_are_listed_by_state_and_type() -> None:
    stage = Stage()
    stage.answer(join(group="stable", version=3))
    stage.answer(sync("c-1", 1, group="stable", assignments={}))
    stage.answer(commit(group="empty", t=1))

    def listed(*states: str, types: str = "") -> list[str]:
        command = ListGroups(frozenset(states), frozenset(types.split()))
        return [each.group_id for each in stage.answer(command)]

    assert listed() == ["stable", "empty"]
    assert listed("stable") == ["stable"]
    assert listed("empty", "dead") == ["empty"]
    assert listed(types="classic") == ["stable", "empty"]
    assert listed(types="consumer share") == []


def test_groups_of_all_kinds_count_towards_the_limit() -> None:
    stage = Stage(GroupSettings(first_join_pause_ms=0, max_groups=2))
    for name in (b"f", b"g"):  # two streams groups
        stage.machine.apply(Stored(b"\x00\x11\x00\x01" + name, b"\x00\x00\x00\x00\x00\x01" + bytes(9)))
    assert stage.answer(join(group="h", version=3)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert stage.answer(DeleteGroup("g")) is False
    assert stage.answer(join(group="h", version=3)).error_code == ErrorCode.NONE


def test_syncs_of_old_clients_need_no_protocol() -> None:
    stage = Stage()
    joined = stage.answer(join(version=3))
    assert isinstance(stage.answer(sync(joined.member_id, 1, assignments={})), sync_group.Response)
