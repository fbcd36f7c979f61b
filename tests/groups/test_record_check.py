"""Tests that accepted records of clients can be replayed: a record that passes the check does not stop a
coordinator."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import Damage
from kpybroker.groups.classic.records import group_record
from kpybroker.groups.consumer import records
from kpybroker.groups.offsets.committed import Committed
from kpybroker.groups.offsets.records import commit_record
from kpybroker.groups.record_check import check_record
from kpybroker.machine.contract import Stored
from tests.groups.test_records import UNREADABLE_COMMITS, UNREADABLE_GROUPS, machine_of

COMMITTED = Committed(5, 1, "m", 7, -1, bytes(16))
KEYS = [kind.to_bytes(2, "big", signed=True) for kind in (-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 17, 99)]


def bare(record: Stored) -> Stored:
    """The record in the form in which a client sends it, as bytes."""
    return Stored(record.key, record.value)


@pytest.mark.parametrize("record", UNREADABLE_COMMITS + UNREADABLE_GROUPS)
def test_records_that_a_replay_cannot_read_are_damage(record: Stored) -> None:
    with pytest.raises(Damage):
        check_record(bare(record))


def changed(data: st.DataObject, value: bytes) -> bytes:
    """The bytes with some of them changed, cut off or added."""
    found = bytearray(value)
    for at in data.draw(st.lists(st.integers(0, max(len(found) - 1, 0)), max_size=3)):
        if found:
            found[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.just(len(found)) | st.integers(0, len(found)))
    return bytes(found[:end]) + data.draw(st.binary(max_size=3))


def some_records() -> list[Stored]:
    """One record of each kind that this broker writes."""
    from kpybroker.groups.classic.group import ClassicGroup, ClassicMember
    from kpybroker.groups.consumer.group import ConsumerGroup, ConsumerMember, ResolvedRegex

    group = ClassicGroup("g", 5)
    group.add(ClassicMember("m", "i", "c", "/h"), "consumer")
    modern, member = ConsumerGroup("g"), ConsumerMember("m", None)
    target = frozenset({(bytes(16), 1)})
    return [
        commit_record("g", ("t", 0), COMMITTED),
        commit_record("g", ("t", 0), COMMITTED._replace(expire_timestamp_ms=9)),
        group_record(group),
        records.epoch_record(modern),
        records.member_record("g", member),
        records.target_epoch_record(modern),
        records.target_record("g", "m", target),
        records.current_record("g", member),
        records.regex_record("g", "a.*", ResolvedRegex(frozenset({"a"}), 1, 2)),
    ]


SOME = some_records()


@pytest.mark.parametrize("record", SOME)
def test_what_this_broker_writes_passes(record: Stored) -> None:
    check_record(bare(record))
    check_record(Stored(record.key, None))


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_records_that_pass_the_check_are_replayed(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(SOME), min_size=1, max_size=4))
    sent = [
        Stored(changed(data, record.key or b""), data.draw(st.none() | st.just(changed(data, record.value or b""))))
        for record in chosen
    ]
    sent += [Stored(data.draw(st.sampled_from(KEYS)) + data.draw(st.binary(max_size=6)), data.draw(st.binary()))]
    passed = []
    for record in sent:
        try:
            check_record(bare(record))
        except Damage:
            continue
        passed.append(bare(record))
    machine_of(*passed)
