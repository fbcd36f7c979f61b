"""Tests that records have the same bytes as the records that Apache Kafka 4.3 wrote for the same groups, and that
parsing them produces the same groups."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import Damage, MalformedFrame
from kpybroker.groups.classic.group import ClassicGroup, ClassicMember, GroupState
from kpybroker.groups.classic.records import group_record, group_tombstone, read_group, read_group_id
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.groups.kinds import BY_RECORD
from kpybroker.groups.machine import GroupMachine
from kpybroker.groups.offsets.committed import Committed
from kpybroker.groups.offsets.records import commit_record, read_commit
from kpybroker.machine.contract import Moment, Stored, Tick
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.stored.group import OffsetCommitValue
from tests.groups.stage import in_turn

TOPIC_ID = bytes.fromhex("c9d958a4d1e9420182d19d4c49cf0ae1")
SUBSCRIPTION = bytes.fromhex("0003000000010001740000000000000000ffffffff0000")
ASSIGNMENT = bytes.fromhex("000000000001000174000000010000000000000000")
MEMBER_ID = "i1-8d93db52-1c93-48f3-a61c-6667d49d4e3b"

NEW_GROUP = ("0002000364796e", "0003000000000000ffffffff000001a1fc860d4f00000000")
STABLE_GROUP = (
    "0002000473746174",
    "00030008636f6e73756d657200000001000572616e6765002769312d38643933646235322d316339332d343866332d613631632d3636363764"
    "34396434653362000001a1fc860eb600000001002769312d38643933646235322d316339332d343866332d613631632d363636376434396434"
    "65336200026931000772646b61666b61000a2f3132372e302e302e31000493e00000afc8000000170003000000010001740000000000000000"
    "ffffffff000000000015000000000001000174000000010000000000000000",
)
EMPTY_GROUP = ("0002000364796e", "00030008636f6e73756d657200000002ffffffff000001a1fc860e5500000000")
COMMIT = (
    "0001000364796e00017400000000",
    "000400000000000000010000000001000001a1fc860e3b010010c9d958a4d1e9420182d19d4c49cf0ae1",
)
NO_COMMIT = ("0001000673696d706c6500017400000000", None)
NO_GROUP = ("0002000673696d706c65", None)


def as_hex(record: Stored) -> tuple[str, str | None]:
    return bytes(record.key or b"").hex(), None if record.value is None else bytes(record.value).hex()


def stored(key: str, value: str | None) -> Stored:
    return Stored(bytes.fromhex(key), None if value is None else bytes.fromhex(value))


def stable_group() -> ClassicGroup:
    group = ClassicGroup("stat", 0x1A1FC860EB6)
    member = ClassicMember(MEMBER_ID, "i1", "rdkafka", "/127.0.0.1")
    member.protocols = (("range", SUBSCRIPTION), ("roundrobin", SUBSCRIPTION))
    member.rebalance_timeout_ms, member.session_timeout_ms = 300_000, 45_000
    member.assignment = ASSIGNMENT
    group.add(member, "consumer")
    group.generation, group.protocol, group.state = 1, "range", GroupState.STABLE
    return group


def test_groups_are_written_as_kafka_writes_them() -> None:
    assert as_hex(group_record(ClassicGroup("dyn", 0x1A1FC860D4F))) == NEW_GROUP
    assert as_hex(group_record(stable_group())) == STABLE_GROUP
    empty = ClassicGroup("dyn", 0x1A1FC860E55)
    empty.protocol_type, empty.generation = "consumer", 2
    assert as_hex(group_record(empty)) == EMPTY_GROUP
    assert as_hex(group_tombstone("simple")) == NO_GROUP


def test_offsets_are_written_as_kafka_writes_them() -> None:
    committed = Committed(1, 0, "", 0x1A1FC860E3B, -1, TOPIC_ID)
    assert as_hex(commit_record("dyn", ("t", 0), committed)) == COMMIT
    assert as_hex(commit_record("simple", ("t", 0), None)) == NO_COMMIT


@pytest.mark.parametrize("example", [NEW_GROUP, STABLE_GROUP, EMPTY_GROUP])
def test_a_group_is_parsed_back(example: tuple[str, str]) -> None:
    record = stored(*example)
    assert record.key is not None
    assert record.value is not None
    group = read_group(read_group_id(record.key), record.value, 0)
    assert as_hex(group_record(group)) == example


@pytest.mark.parametrize("expires_ms", [-1, 5])
def test_an_offset_is_parsed_back(expires_ms: int) -> None:
    leader_epoch, topic_id = (
        (7, TOPIC_ID) if expires_ms < 0 else (-1, bytes(16))
    )  # the old version does not have these fields
    committed = Committed(2**40, leader_epoch, "é😀", 3, expires_ms, topic_id)
    record = commit_record("g", ("t", 9), committed)
    again = read_commit(Stored(record.key, record.value))
    assert again == ("g", ("t", 9), committed)


def test_offsets_of_every_earlier_version_are_read() -> None:
    key = bytes.fromhex(COMMIT[0])
    body = {
        0: "0000 0000000000000005 0001 6d 0000000000000007",
        1: "0001 0000000000000005 0001 6d 0000000000000007 0000000000000009",
        2: "0002 0000000000000005 0001 6d 0000000000000007",
        3: "0003 0000000000000005 00000004 0001 6d 0000000000000007",
    }
    for version, value in body.items():
        *_, committed = read_commit(Stored(key, bytes.fromhex(value)))
        expires_ms, epoch = (9 if version == 1 else -1), (4 if version == 3 else -1)
        assert committed == Committed(5, epoch, "m", 7, expires_ms, bytes(16))
    *_, legacy = read_commit(Stored(b"\x00\x00" + key[2:], bytes.fromhex(body[0])))
    assert legacy == Committed(5, -1, "m", 7, -1, bytes(16))


@st.composite
def commit_values(draw: st.DrawFn) -> bytes:
    """Values of every version, unchanged or with bytes changed, cut off or appended."""
    version = draw(st.integers(0, 4))
    said = OffsetCommitValue(
        offset=draw(st.integers(-(2**63), 2**63 - 1)),
        leader_epoch=draw(st.integers(-(2**31), 2**31 - 1)),
        metadata=draw(st.just("") | st.text(max_size=3)),
        commit_timestamp=draw(st.integers(-(2**63), 2**63 - 1)),
        expire_timestamp=draw(st.integers(-1, 2**63 - 1)) if version == 1 else -1,
        topic_id=draw(st.just(TOPIC_ID) | st.just(bytes(16)) | st.binary(min_size=16, max_size=16)),
    )
    value = bytearray(version.to_bytes(2, "big") + build(said, version))
    for at in draw(st.lists(st.integers(0, len(value) - 1), max_size=2)):
        value[at] ^= draw(st.integers(0, 255))
    return bytes(
        value[: draw(st.just(len(value)) | st.integers(0, len(value)))] + draw(st.just(b"") | st.binary(max_size=2))
    )


@settings(max_examples=200, deadline=None)
@given(value=commit_values())
def test_a_commit_is_parsed_according_to_its_schema(value: bytes) -> None:
    by_its_schema(value)


def test_a_changed_commit_is_parsed_according_to_its_schema() -> None:
    for at in range(len(COMMIT[1]) // 2):
        for changed in range(256):
            value = bytearray.fromhex(COMMIT[1])
            value[at] = changed
            by_its_schema(bytes(value))


def by_its_schema(value: bytes) -> None:
    """Compare the parsed value, or the error, with the result of the schema."""
    version = int.from_bytes(value[:2], "big", signed=True) if len(value) >= 2 else -1
    try:
        if not 0 <= version <= 4:
            raise MalformedFrame("no such version")
        said = parse(OffsetCommitValue, version, value, 2)
    except MalformedFrame:
        with pytest.raises(MalformedFrame):
            read_commit(Stored(bytes.fromhex(COMMIT[0]), value))
        return
    assert read_commit(Stored(bytes.fromhex(COMMIT[0]), value))[2] == Committed(
        said.offset, said.leader_epoch, said.metadata, said.commit_timestamp, said.expire_timestamp, said.topic_id
    )


def machine_of(*kept: Stored) -> GroupMachine:
    machine = GroupMachine(GroupSettings(), in_turn())
    for record in kept:
        machine.apply(record)
    machine.decide(None, Tick(), Moment(0, 0))  # type: ignore[arg-type]  # nobody waits for it
    return machine


def test_records_of_kinds_that_no_group_has_have_no_effect() -> None:
    keys = [kind.to_bytes(2, "big") + b"\x00\x01g" for kind in range(3, 40) if kind not in BY_RECORD]
    assert len(keys) > 10
    machine = machine_of(*[Stored(key, b"\x00\x00\x00\x00\x00\x01\x00") for key in keys], stored(*COMMIT))
    assert [list(kind.groups) for kind in machine.kinds if kind.groups] == [["dyn"]]


@pytest.mark.parametrize("key", [None, b"", b"\x00", b"\x7f\xff", b"\xff\xff"])
def test_a_record_of_an_unknown_kind_has_no_effect(key: bytes | None) -> None:
    assert machine_of(Stored(key, b"value"), stored(*COMMIT)).offsets.of("dyn")["t", 0].offset == 1


UNREADABLE_COMMITS = [
    Stored(bytes.fromhex(COMMIT[0]), b""),
    Stored(bytes.fromhex(COMMIT[0]), b"\x00"),
    Stored(bytes.fromhex(COMMIT[0]), b"\x00\x05" + bytes(40)),  # of a later Kafka
    Stored(bytes.fromhex(COMMIT[0]), b"\xff\xff" + bytes(40)),
    Stored(bytes.fromhex(COMMIT[0])[:-1], bytes.fromhex(COMMIT[1])),
    Stored(b"\x00\x00" + bytes.fromhex(COMMIT[0])[2:], bytes.fromhex(COMMIT[1])),
]
UNREADABLE_GROUPS = [
    Stored(bytes.fromhex(NEW_GROUP[0])[:-1], bytes.fromhex(NEW_GROUP[1])),
    Stored(bytes.fromhex(NEW_GROUP[0]), b"\x00\x03"),
    Stored(bytes.fromhex(NEW_GROUP[0]), b"\x00\x05" + bytes(40)),
    Stored(bytes.fromhex(STABLE_GROUP[0]), bytes.fromhex(STABLE_GROUP[1])[:-1]),
]


@pytest.mark.parametrize("record", UNREADABLE_COMMITS + UNREADABLE_GROUPS)
def test_an_unreadable_record_is_damage_and_not_ignored(record: Stored) -> None:
    with pytest.raises(Damage):
        machine_of(record)
