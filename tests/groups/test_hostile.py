"""Tests that no request of a misbehaving client stops a coordinator, or makes a replay differ from the live state."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.consumer import classic_members
from kpybroker.groups.ground.commands import (
    CommitOffsets,
    ConsumerHeartbeat,
    Heartbeat,
    Join,
    Leave,
    PartitionCommit,
    Sync,
)
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.ground.step import record_bytes
from kpybroker.wire.rpc import consumer_group_heartbeat, join_group, leave_group, sync_group
from tests.compacted import compacted
from tests.groups.stage import Stage

SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
"""A subscription of version 0 to topic t."""
SESSION_MS = 10_000
OFFERS = [("range", SUBSCRIPTION), ("other", b"\xff"), ("range", b""), ("other", SUBSCRIPTION)]
LONG = "é" * 16_383
EXTREMES = [-(1 << 31), -1, 0, 1, SESSION_MS, (1 << 31) - 1]


def stage() -> Stage:
    found = Stage(GroupSettings(first_join_pause_ms=0, group_initial_rebalance_delay_ms=1000))
    found.topic("t", 3)
    return found


def join(*protocols: tuple[str, bytes], member_id: str = "", client: str = "c") -> Join:
    offered = [join_group.JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols]
    request = join_group.Request(
        group_id="g",
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=offered,
    )
    return Join(request, client, "/127.0.0.1", False, False)


def beat(member_id: str, epoch: int, **facts: Any) -> ConsumerHeartbeat:
    said = {"rebalance_timeout_ms": SESSION_MS, "subscribed_topic_names": ["t"], "topic_partitions": []}
    request = consumer_group_heartbeat.Request(
        group_id="g", member_id=member_id, member_epoch=epoch, **{**(said if epoch == 0 else {}), **facts}
    )
    return ConsumerHeartbeat(request, "c", "/127.0.0.1")


def same_after_replay(played: Stage) -> bool:
    """Check that a replay produces the same state, also from a compacted log."""
    logs = [played.log, *(compacted(played.log, Random(number)) for number in range(3))]
    live = [kind.stored for kind in played.machine.kinds]
    return all([kind.stored for kind in played.replayed(log).kinds] == live for log in logs)


def test_a_protocol_that_is_offered_twice_counts_once_after_a_downgrade() -> None:
    played = stage()
    played.answer(beat("modern", 0))
    assert played.answer(join(("range", SUBSCRIPTION), ("range", b"\xff"))).error_code == 0
    played.answer(beat("modern", -1))
    assert [each.protocols for each in played.machine.kinds["classic"].groups["g"].members.values()] == [
        (("range", SUBSCRIPTION),)
    ]
    assert same_after_replay(played)


def test_a_protocol_that_was_stored_twice_counts_once_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier version may have written such a log."""
    played = stage()
    played.answer(beat("modern", 0))
    with monkeypatch.context() as before:
        before.setattr(classic_members, "named_once", tuple)
        played.answer(join(("range", SUBSCRIPTION), ("range", SUBSCRIPTION)))
    played.answer(beat("modern", -1))
    assert played.machine.kinds["classic"].groups["g"].protocol == "range"


def test_a_protocol_that_no_member_chose_is_not_parsed() -> None:
    played = stage()
    played.ask(join(("other", b"\xff"), ("range", SUBSCRIPTION), client="a"))
    played.ask(join(("range", SUBSCRIPTION), client="b"))
    played.wait(SESSION_MS // 2)
    group = played.machine.kinds["classic"].groups["g"]
    assert group.protocol == "range"
    for member_id in list(group.members):
        asked = sync_group.Request(group_id="g", generation_id=group.generation, member_id=member_id)
        played.ask(Sync(asked))
    played.answer(beat("modern", 0))
    played.answer(beat("modern", -1))
    assert "g" in played.machine.kinds["classic"].groups
    assert same_after_replay(played)


def test_an_assignment_is_in_the_version_of_the_protocol_that_counts() -> None:
    played = stage()
    version_1 = b"\0\1" + SUBSCRIPTION[2:] + bytes(4)
    offered = (("other", version_1), ("range", SUBSCRIPTION))
    first, answers, _ = played.ask(join(*offered))
    played.ask(join(("range", SUBSCRIPTION), client="b"))
    joined = dict([*answers, *played.wait(SESSION_MS // 2)])[first]
    played.answer(Sync(sync_group.Request(group_id="g", generation_id=1, member_id=joined.member_id)))
    played.answer(beat("modern", 0))
    played.answer(beat("modern", -1))
    group = played.machine.kinds["classic"].groups["g"]
    assert group.protocol == "range"
    assert group.members[joined.member_id].assignment.startswith(b"\0\0")


def test_an_offset_may_expire_at_the_end_of_time() -> None:
    played = stage()
    places = [("t", played.topic("t", 3), [PartitionCommit(0, 7, -1, "")])]
    played.answer(CommitOffsets("g", "", None, -1, (1 << 63) - 1, places, True))
    played.wait(1 << 31)
    assert played.machine.offsets.of("g")


@pytest.mark.parametrize("is_modern", [True, False])
def test_a_long_client_id_makes_no_member_id_that_cannot_be_stored(is_modern: bool) -> None:
    played = stage()
    if is_modern:
        played.answer(beat("modern", 0))
    ticket, answers, _ = played.ask(join(("range", SUBSCRIPTION), client=LONG))
    answers += played.wait(SESSION_MS // 2)
    told = dict(answers)[ticket]
    synced = sync_group.SyncGroupRequestAssignment(member_id=told.member_id, assignment=b"\0")
    asked = sync_group.Request(
        group_id="g", generation_id=told.generation_id, member_id=told.member_id, assignments=[synced]
    )
    assert played.answer(Sync(asked)).error_code == 0
    assert played.log
    assert same_after_replay(played)


def test_a_member_that_claims_another_instance_id_loses_the_first() -> None:
    played = stage()
    played.answer(beat("m", 0, instance_id="first"))
    played.answer(beat("m", 0, instance_id="second"))
    assert played.machine.kinds["consumer"].groups["g"].instances == {"second": "m"}
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
        played.answer(beat("m", -2, instance_id="first"))
    assert same_after_replay(played)


@pytest.mark.parametrize("count", [20, 49, 50, 51, 60, 1000])
def test_a_member_that_does_not_fit_into_a_batch_is_refused_without_a_change(count: int) -> None:
    """At every limit, the written records fit into a batch, and a refusal creates no group, no member and no epoch."""
    room = 50 * 100
    names = [f"{number:099}" for number in range(count)]
    played = Stage(GroupSettings(max_batch_bytes=room))
    played.topic("t", 3)
    answers = [played.ask(beat("big", 0, subscribed_topic_names=names))[1:] for _ in range(2)]
    ((_, answer),), written = answers[0]
    size = sum(record_bytes(record) for record in written)
    assert size <= room
    assert bool(written) is (size > 0) is (count < 49)
    if not written:
        assert answer.code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert (played.machine.kinds["consumer"].groups, played.machine.kinds["consumer"].stored) == (
            {},
            {},
        )
    told = played.answer(beat("small", 0))
    before = shown(played)
    with pytest.raises(KafkaError) as refused:
        played.answer(beat("other", 0, subscribed_topic_names=[*names, "more" * 1000]))
    assert (refused.value.code, shown(played)) == (ErrorCode.UNKNOWN_SERVER_ERROR, before)
    with pytest.raises(KafkaError) as refused:
        played.answer(beat("small", told.member_epoch, subscribed_topic_names=[*names, "more" * 1000]))
    assert (refused.value.code, shown(played)) == (ErrorCode.UNKNOWN_SERVER_ERROR, before)
    assert same_after_replay(played)


def shown(played: Stage) -> Any:
    return [
        (group.epoch, [one.said() for one in group.members.values()], group.instances)
        for group in played.machine.kinds["consumer"].groups.values()
    ]


def hostile(chance: Random, played: Stage) -> Any:
    """A random request to group g, with ids that usually exist."""
    members = (
        [*played.machine.kinds["classic"].groups["g"].members] if "g" in played.machine.kinds["classic"].groups else []
    )
    if "g" in played.machine.kinds["consumer"].groups:
        members += played.machine.kinds["consumer"].groups["g"].members
    member_id = chance.choice([*members, *members, "", "m", LONG])
    extreme = chance.choice(EXTREMES)
    match chance.randrange(8):
        case 0 | 1:
            offers = [chance.choice(OFFERS) for _ in range(chance.randrange(1, 4))]
            asked = join(*offers, member_id=member_id, client=chance.choice(["c", LONG]))
            asked.request.group_instance_id = chance.choice([None, None, "i", LONG])
            return asked
        case 2 | 3:
            facts: dict[str, Any] = {
                "rebalance_timeout_ms": extreme,
                "subscribed_topic_regex": chance.choice([None, None, "t.*", "(", LONG]),
                "server_assignor": chance.choice([None, None, "range", "uniform", LONG]),
                "instance_id": chance.choice([None, None, "i", LONG]),
                "rack_id": chance.choice([None, LONG]),
            }
            return beat(member_id, chance.choice([-2, -1, 0, 0, 0, 1, (1 << 31) - 1]), **facts)
        case 4:
            return Leave("g", [leave_group.MemberIdentity(member_id=member_id) for _ in range(chance.randrange(3))])
        case 5:
            given = [sync_group.SyncGroupRequestAssignment(member_id=each, assignment=b"\xff") for each in members]
            return Sync(
                sync_group.Request(
                    group_id="g",
                    generation_id=chance.choice([0, 1, 2, extreme]),
                    member_id=member_id,
                    assignments=given,
                )
            )
        case 6:
            commits = [PartitionCommit(chance.choice(EXTREMES), chance.choice(EXTREMES), extreme, "x" * 5000)]
            generation = chance.choice([-1, 1, extreme])
            kept_ms = chance.choice([-1, 0, (1 << 63) - 1])
            return CommitOffsets("g", member_id, None, generation, kept_ms, [("t", bytes(16), commits)], True)
        case _:
            return Heartbeat("g", member_id, None, extreme)


@given(st.integers(0, 1 << 32))
@settings(max_examples=100, deadline=None)
def test_nothing_but_a_refusal_is_raised_and_replay_equals_live(seed: int) -> None:
    chance = Random(seed)
    played = stage()
    for _ in range(40):
        with contextlib.suppress(KafkaError):
            played.ask(hostile(chance, played))
        played.wait(chance.choice([0, 0, 1, 1000, SESSION_MS, 60_000]))
    assert same_after_replay(played)
