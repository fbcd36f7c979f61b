"""Tests that the record of a member has the same bytes as the record that Apache Kafka 4.3.1 wrote for the same
member."""

from __future__ import annotations

import pytest

from kpybroker.groups.consumer.group import ConsumerMember
from kpybroker.groups.consumer.records import member_record, read_group
from kpybroker.machine.contract import Stored
from kpybroker.wire.stored.consumer_group import ClassicMemberMetadata, ClassicProtocol

KEY = b"\x00\x05\x00\x08a-modern\x00\x11a-modern-member-1"
SAID = b"\x00\x00\x12a-modern-member-1\x00\x07oracle\x0b/127.0.0.1\x02\x08a-grown\x01\x00\t'\xc0\x00"
NO_TAG, NULL = b"\x00", b"\x01\x00\x01\x00"
CLASSIC = b"\x01\x00\x11\x01\x00\x00\xaf\xc8\x02\x06range\x03\x00\x03\x00\x00"


def member(classic: ClassicMemberMetadata | None) -> ConsumerMember:
    made = ConsumerMember("a-modern-member-1", "a-modern-member-1")
    made.client_id, made.client_host = "oracle", "/127.0.0.1"
    made.names, made.rebalance_timeout_ms, made.classic = ("a-grown",), 600_000, classic
    return made


RANGE = ClassicMemberMetadata(
    session_timeout_ms=45_000, supported_protocols=[ClassicProtocol(name="range", metadata=b"\x00\x03")]
)


@pytest.mark.parametrize(("classic", "tags"), [(None, NULL), (RANGE, CLASSIC)], ids=["consumer", "classic"])
def test_the_record_contains_the_protocol_of_a_member(classic: ClassicMemberMetadata | None, tags: bytes) -> None:
    assert member_record("a-modern", member(classic)) == Stored(KEY, SAID + tags)
    assert replayed(SAID + tags).classic == classic


def test_a_record_without_the_field_belongs_to_a_consumer_protocol_member() -> None:
    assert replayed(SAID + NO_TAG).classic is None


def replayed(value: bytes) -> ConsumerMember:
    return read_group("a-modern", {KEY: value}).members["a-modern-member-1"]
