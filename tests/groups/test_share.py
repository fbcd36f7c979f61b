"""Tests of share groups (KIP-932): the assignment of partitions, their initialization, and the state after a replay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import (
    AlterShareOffsets,
    CommitOffsets,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    DeleteShareOffsets,
    DescribeShareGroup,
    DropTopics,
    ListGroups,
    ListSharePartitions,
    PartitionCommit,
)
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.share.assignor import simple
from kpybroker.groups.share.errands import DeleteState, InitializeState
from kpybroker.wire.rpc import consumer_group_heartbeat
from tests.groups.sharing import AT_ONCE, ShareStage, beat, places
from tests.groups.stage import join

TOPICS = ("t", "u", "v")
MEMBERS = st.sampled_from(["a", "b", "c"])


def code_of(stage: ShareStage, command: Any) -> int:
    try:
        return int(getattr(stage.answer(command), "error_code", 0))
    except KafkaError as refusal:
        return int(refusal.code)


def shared(stage: ShareStage) -> Any:
    """The coordinator's state of its groups, without times and without the state that a waiting caller creates
    again."""
    return {
        group_id: (
            group.epoch,
            group.metadata_hash,
            group.assignment_epoch,
            {name: (m.said(), m.epoch, m.previous_epoch, m.assigned) for name, m in group.members.items()},
            {name: target for name, target in group.targets.items() if target},
            {
                topic: left
                for topic, state in group.initializing.items()
                if (
                    left := state.partitions.difference(
                        *(each.partitions for each in [group.initialized.get(topic)] if each)
                    )
                )
            },
            group.initialized,
            group.deleting,
        )
        for group_id, group in stage.machine.kinds["share"].groups.items()
    }


# -- responses to members ----------------------------------------------------------------------------------------------


def test_a_member_hears_its_partitions_once_they_are_initialized() -> None:
    stage = ShareStage()
    topic = stage.topic("t", 2)
    told = stage.answer(beat("a", 0, "t"))
    assert (told.member_epoch, places(told)) == (2, set())
    assert stage.errands == [InitializeState("s", topic, 2, (0, 1), (-1, -1))]
    assert places(stage.answer(beat("a", 2, "t"))) == set()
    stage.run_errands()
    told = stage.answer(beat("a", 2))
    assert (told.member_epoch, places(told)) == (3, {(topic, 0), (topic, 1)})
    assert (stage.answer(beat("a", 3)).member_epoch, places(stage.answer(beat("a", 3)))) == (3, None)


def test_the_records_of_a_join_are_kafkas_in_its_order() -> None:
    stage = ShareStage()
    stage.topic("t", 2)
    _, _, written = stage.ask(beat("a", 0, "t"))
    assert [int.from_bytes(record.key[:2], "big") for record in written] == [10, 11, 13, 12, 14, 15]
    _, _, written = stage.ask(beat("a", -1))
    assert [(int.from_bytes(record.key[:2], "big"), record.value is None) for record in written] == [
        (14, True),
        (13, True),
        (10, True),
        (11, False),
    ]


def test_a_failed_initialization_is_taken_back_and_begun_again() -> None:
    stage = ShareStage()
    stage.topic("t", 1)
    stage.answer(beat("a", 0, "t"))
    stage.run_errands(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert stage.answer(ListSharePartitions("s")) == []
    stage.answer(beat("a", 2))
    assert len(stage.errands) == 1
    stage.run_errands()
    assert len(stage.answer(ListSharePartitions("s"))) == 1


def test_errands_are_repeated_by_the_next_coordinator() -> None:
    stage = ShareStage()
    topic = stage.topic("t", 1)
    stage.answer(beat("a", 0, "t"))
    stage.restart()
    stage.answer(ListGroups())
    assert stage.errands == [InitializeState("s", topic, 2, (0,), (-1,))]


def test_added_partitions_are_initialized_too() -> None:
    stage = ShareStage()
    topic = stage.topic("t", 1)
    epoch = stage.joined("a", "t").member_epoch
    stage.topic("t", 3)
    epoch = stage.answer(beat("a", epoch)).member_epoch
    assert stage.errands[0].partitions == (1, 2)
    stage.run_errands()
    assert places(stage.answer(beat("a", epoch))) == {(topic, index) for index in range(3)}


def test_the_assignment_waits_for_its_interval() -> None:
    stage = ShareStage(GroupSettings(first_join_pause_ms=0, share_assignment_interval_ms=1_000))
    topic = stage.topic("t", 1)
    stage.answer(beat("a", 0, "t"))
    stage.run_errands()
    for _ in range(3):
        stage.now_ms += 300
        assert stage.answer(beat("a", 2)).member_epoch == 2
    stage.now_ms += 200
    told = stage.answer(beat("a", 2))
    assert (told.member_epoch, places(told)) == (3, {(topic, 0)})


def test_epochs_are_checked() -> None:
    stage = ShareStage()
    stage.topic("t", 1)
    epoch = stage.joined("a", "t").member_epoch
    assert code_of(stage, beat("a", epoch - 1)) == 0, "it may not have heard the last answer"
    assert code_of(stage, beat("a", epoch + 1)) == ErrorCode.FENCED_MEMBER_EPOCH
    assert code_of(stage, beat("a", epoch - 2)) == ErrorCode.FENCED_MEMBER_EPOCH
    assert code_of(stage, beat("b", epoch)) == ErrorCode.UNKNOWN_MEMBER_ID
    again = stage.answer(beat("a", 0, "t"))
    assert (again.member_epoch, places(again)) == (epoch, {(stage.topic("t", 1), 0)})


@pytest.mark.parametrize(
    "wrong",
    [
        beat("a", 0),
        beat("", 0, "t"),
        beat("x" * 37, 0, "t"),
        beat("a", 0, "t", rack_id=""),
        beat("a", -2, "t"),
        beat("a", 0, "t", group=""),
    ],
)
def test_malformed_heartbeats_are_refused(wrong: Any) -> None:
    assert code_of(ShareStage(), wrong) == ErrorCode.INVALID_REQUEST


def test_a_group_has_a_limit_of_members() -> None:
    stage = ShareStage(GroupSettings(first_join_pause_ms=0, share_max_size=2))
    assert [code_of(stage, beat(name, 0, "t")) for name in "abca"] == [0, 0, ErrorCode.GROUP_MAX_SIZE_REACHED, 0]


def test_a_member_has_a_limit_of_topics() -> None:
    stage = ShareStage()
    names = ["x" * 200 + str(number) for number in range(3_000)]
    assert code_of(stage, beat("a", 0, *names)) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert not stage.machine.kinds["share"].groups
    assert code_of(stage, beat("a", 0, *names[:2_000])) == 0


def test_a_silent_member_is_removed() -> None:
    stage = ShareStage()
    stage.topic("t", 1)
    stage.joined("a", "t")
    stage.wait(AT_ONCE.share_session_timeout_ms)
    assert stage.answer(DescribeShareGroup("s")).group_state == "Empty"


# -- one type for each group id ----------------------------------------------------------------------------------------


def test_a_group_id_has_one_type() -> None:
    stage = ShareStage()
    stage.topic("t", 1)
    stage.joined("a", "t")
    commit = CommitOffsets("s", "", None, -1, -1, [("t", bytes(16), [PartitionCommit(0, 1, -1, "")])], True)
    not_found = ErrorCode.GROUP_ID_NOT_FOUND
    assert code_of(stage, join(group="s", version=3)) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = consumer_group_heartbeat.Request(
        group_id="s", member_id="m", rebalance_timeout_ms=1, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert code_of(stage, ConsumerHeartbeat(other, "c", "/h")) == not_found
    assert code_of(stage, commit) == code_of(stage, DeleteOffsets("s", [])) == not_found
    stage.answer(join(group="classic", version=3))
    assert code_of(stage, beat("a", 0, "t", group="classic")) == not_found
    assert code_of(stage, DescribeShareGroup("classic")) == code_of(stage, DescribeShareGroup("none")) == not_found


# -- deletions and new beginnings --------------------------------------------------------------------------------------


def test_a_group_is_deleted_after_the_state_of_its_share_partitions() -> None:
    stage = ShareStage()
    topic = stage.topic("t", 2)
    epoch = stage.joined("a", "t").member_epoch
    assert code_of(stage, DeleteGroup("s")) == ErrorCode.NON_EMPTY_GROUP
    stage.answer(beat("a", -1))
    ticket, answers, _ = stage.ask(DeleteGroup("s"))
    assert not [each for each in answers if each[0] == ticket]
    assert stage.errands == [DeleteState("s", topic, (0, 1))]
    assert (ticket, True) in stage.run_errands()
    assert stage.answer(DeleteGroup("s")) is False
    assert not stage.machine.kinds["share"].stored
    assert code_of(stage, beat("a", epoch)) == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deletion_that_fails_is_refused_and_may_be_asked_again() -> None:
    stage = ShareStage()
    topic = stage.topic("t", 1)
    stage.joined("a", "t")
    stage.answer(beat("a", -1))
    ticket, _, _ = stage.ask(DeleteGroup("s"))
    told = dict(stage.run_errands(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert told[ticket].code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    stage.restart()
    stage.answer(ListGroups())
    assert stage.errands == [DeleteState("s", topic, (0,))]
    stage.run_errands()
    assert stage.answer(DeleteGroup("s")) is False


def test_offsets_are_altered_in_an_empty_group_which_is_made() -> None:
    stage = ShareStage()
    topic = stage.topic("t", 2)
    ticket, _, _ = stage.ask(AlterShareOffsets("new", topic, {1: 7}))
    assert stage.errands == [InitializeState("new", topic, 1, (1,), (7,))]
    assert stage.run_errands() == [(ticket, ErrorCode.NONE)]
    assert stage.answer(ListSharePartitions("new")) == [(topic, 1)]
    stage.joined("a", "t", group="new")
    assert code_of(stage, AlterShareOffsets("new", topic, {1: 7})) == ErrorCode.NON_EMPTY_GROUP
    assert code_of(stage, AlterShareOffsets("new", bytes(16), {1: 7})) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_are_not_altered_while_the_state_of_their_topic_is_being_deleted() -> None:
    stage = ShareStage()
    topic = stage.topic("t", 1)
    stage.answer(beat("a", 0, "t"))
    stage.answer(beat("a", -1))
    stage.ask(DeleteGroup("s"))
    assert code_of(stage, AlterShareOffsets("s", topic, {0: 5})) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_an_alteration_whose_coordinator_ends_leaves_the_state_alone() -> None:
    stage = ShareStage()
    topic = stage.topic("t", 1)
    stage.joined("a", "t")
    stage.answer(beat("a", -1))
    stage.ask(AlterShareOffsets("s", topic, {0: 7}))
    stage.restart()
    stage.answer(ListGroups())
    assert stage.errands == []
    assert stage.answer(ListSharePartitions("s")) == [(topic, 0)]


def test_offsets_of_a_topic_are_deleted_in_an_empty_group() -> None:
    stage = ShareStage()
    topic, other = stage.topic("t", 1), stage.topic("u", 1)
    stage.joined("a", "t", "u")
    assert code_of(stage, DeleteShareOffsets("s", topic)) == ErrorCode.NON_EMPTY_GROUP
    stage.answer(beat("a", -1))
    ticket, _, _ = stage.ask(DeleteShareOffsets("s", topic))
    assert (ticket, ErrorCode.NONE) in stage.run_errands()
    assert stage.answer(DeleteShareOffsets("s", topic)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert stage.answer(ListSharePartitions("s")) == [(other, 0)]
    assert code_of(stage, DeleteShareOffsets("none", None)) == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_topic_made_anew_is_another_one() -> None:
    stage = ShareStage()
    topic = stage.topic("t", 1)
    epoch = stage.joined("a", "t").member_epoch
    stage.drop_topic("t")
    stage.answer(DropTopics({"t": topic}))
    assert stage.answer(ListSharePartitions("s")) == []
    assert places(stage.answer(beat("a", epoch))) == set()


# -- laws --------------------------------------------------------------------------------------------------------------

WISHES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", "e", "f", "g"]),
    st.frozensets(st.sampled_from([b"t", b"u", b"v"]), min_size=1),
    min_size=1,
)
COUNTS = st.dictionaries(st.sampled_from([b"t", b"u", b"v"]), st.integers(1, 5).map(range))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), MEMBERS, st.sets(st.sampled_from(TOPICS), min_size=1)),
        st.tuples(st.just("beat"), MEMBERS),
        st.tuples(st.just("leave"), MEMBERS),
        st.tuples(st.just("errands"), st.sampled_from([0, 15])),
        st.tuples(st.just("grow"), st.sampled_from(TOPICS)),
        st.tuples(st.just("drop"), st.sampled_from(TOPICS)),
        st.tuples(st.just("delete")),
        st.tuples(st.just("alter"), st.sampled_from(TOPICS)),
        st.tuples(st.just("restart")),
        st.tuples(st.just("wait"), st.integers(0, 30_000)),
    ),
    max_size=30,
)


@given(WISHES, COUNTS, st.data())
def test_every_partition_has_a_member_and_every_member_a_fair_share(
    wanted: dict[str, frozenset[bytes]], counts: dict[bytes, range], data: st.DataObject
) -> None:
    held: dict[str, frozenset[tuple[bytes, int]]] = {}
    for _ in range(3):
        plan = simple(wanted, held, counts)
        holders = Counter(place for places in plan.values() for place in places)
        for topic, indexes in counts.items():
            subscribers = [name for name, topics in wanted.items() if topic in topics]
            for index in indexes:
                assert bool(holders[topic, index]) == bool(subscribers)
        for name, places_of in plan.items():
            assert all(topic in wanted[name] for topic, _ in places_of)
            assert bool(places_of) == bool(wanted[name] & counts.keys())
        if len(set(wanted.values())) == 1:
            sizes = [len(places_of) for places_of in plan.values()]
            assert max(sizes) - min(sizes) <= 1
        assert simple(wanted, plan, counts) == plan, "without a change, nobody moves"
        held = plan
        wanted = {name: data.draw(st.sampled_from([topics, wanted[min(wanted)]])) for name, topics in wanted.items()}
        if len(wanted) > 1:
            wanted.pop(data.draw(st.sampled_from(sorted(wanted))))


def test_no_partition_loses_its_only_member_to_members_that_stay() -> None:
    """Six members share three partitions in pairs. Two leave, so that one pair must break up."""
    three: dict[bytes, range] = {b"t": range(3)}
    wanted = dict.fromkeys("abcdef", frozenset({b"t"}))
    pairs = simple(wanted, {}, three)
    left = min(place for place in pairs["a"])
    wanted = {name: topics for name, topics in wanted.items() if left not in pairs[name]}
    plan = simple(wanted, pairs, three)
    assert sorted(len(places_of) for places_of in plan.values()) == [1, 1, 1, 1]
    assert frozenset.union(*plan.values()) == {(b"t", 0), (b"t", 1), (b"t", 2)}
    assert sum(plan[name] != pairs[name] for name in wanted) == 1
    assert simple(wanted, plan, three) == plan


@given(STEPS)
@example([("join", "a", {"t"}), ("leave", "a"), ("delete",), ("alter", "t")])
@settings(max_examples=150)
def test_a_replay_finds_what_the_coordinator_knows(steps: list[Any]) -> None:
    stage = ShareStage()
    epochs: dict[str, int] = {}
    for name in TOPICS[:2]:
        stage.topic(name, 2)
    for what, *with_ in steps:
        _act(stage, epochs, what, with_)
        again = ShareStage()
        again.image, again.log = stage.image, list(stage.log)
        again.restart()
        assert shared(again) == shared(stage)


def _act(stage: ShareStage, epochs: dict[str, int], what: str, with_: list[Any]) -> None:
    try:
        if what == "join":
            epochs[with_[0]] = stage.answer(beat(with_[0], 0, *sorted(with_[1]))).member_epoch
        elif what == "beat":
            epochs[with_[0]] = stage.answer(beat(with_[0], epochs.get(with_[0], 1))).member_epoch
        elif what == "leave":
            stage.answer(beat(with_[0], -1))
        elif what == "errands":
            stage.run_errands(ErrorCode(with_[0]))
        elif what == "grow":
            known = stage.image.topic(with_[0])
            stage.topic(with_[0], 1 + (0 if known is None else len(known.partitions)))
        elif what == "drop" and stage.image.topic(with_[0]) is not None:
            stage.drop_topic(with_[0])
        elif what == "delete":
            stage.ask(DeleteGroup("s"))
        elif what == "alter" and (topic := stage.image.topic(with_[0])) is not None:
            stage.ask(AlterShareOffsets("s", topic.id, {0: 5}))
        elif what == "restart":
            stage.restart()
        elif what == "wait":
            stage.wait(with_[0])
    except KafkaError:
        pass
