"""Declared classes: their constructors, and the errors for values that cannot be encoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.errors import Damage, MalformedFrame
from kpybroker.wire.codec.building import LARGE_BYTES
from kpybroker.wire.codec.codec import build, build_chunks, parse, parse_prefix
from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.parsing import ELEMENTS_MAX
from kpybroker.wire.codec.primitives import Int8, Int32, read_uvarint, skip_tagged, write_uvarint
from kpybroker.wire.rpc import alter_partition_reassignments, fetch, metadata, offset_delete, produce
from kpybroker.wire.stored import group, prefixed
from kpybroker.wire.stored.metadata import RECORDS, TopicRecord, by_key, frame_record, unframe_record


@part
class Item:
    name: str = ""
    weight: Int32 = field("1+", default=7)


@message("0-2", flexible=2)
class Basket:
    items: list[Item] = []
    label: str | None = field("1+")
    grade: Int8 = field("2+", default=3, tag=0)


def test_defaults_are_new_for_each_object() -> None:
    first, second = Basket(), Basket()
    first.items.append(Item())
    assert second == Basket(items=[], label=None, grade=3)
    with pytest.raises(TypeError, match="size"):
        Basket(size=1)
    with pytest.raises(AttributeError):
        first.size = 1


def test_fields_missing_in_a_version_are_dropped_and_parsed_as_default() -> None:
    basket = Basket(items=[Item(name="a", weight=1)], label="x", grade=9)
    assert parse(Basket, 2, build(basket, 2)) == basket
    assert parse(Basket, 1, build(basket, 1)) == Basket(items=[Item(name="a", weight=1)], label="x")
    assert parse(Basket, 0, build(basket, 0)) == Basket(items=[Item(name="a")])


def test_an_unknown_tag_is_skipped() -> None:
    data = build(Basket(), 2)
    assert data == b"\x01\x00\x00"
    assert parse(Basket, 2, b"\x01\x00\x02" + b"\x00\x01\x05" + b"\x63\x03abc") == Basket(grade=5)
    with pytest.raises(MalformedFrame):
        parse(Basket, 2, b"\x01\x00\x01" + b"\x00\x02\x05\x05")


@pytest.mark.parametrize(
    ("basket", "version", "complaint"),
    [
        (Basket(items=[Item(), Item(weight=1 << 31)]), 1, r"Basket v1\.items\[1\]\.weight: 2147483648"),
        (Basket(items=[Item(name="ä" * 16384)]), 0, r"Basket v0\.items\[0\]\.name: a string of 32768 bytes"),
        (Basket(items=[Item(name="ä" * 16384)]), 2, r"Basket v2\.items\[0\]\.name: a string of 32768 bytes"),
        (Basket(items=[Item(name="\ud800")]), 2, r"name: not encodable"),
        (Basket(items=[Item(name=None)]), 2, r"name: null"),
        (Basket(items=[Basket()]), 2, r"items\[0\]: Basket instead of Item"),
        (Basket(grade="a"), 2, r"grade: 'a' does not fit"),
        (Basket(items=None), 2, r"items: null"),
    ],
)
def test_the_error_names_the_field_that_cannot_be_built(basket: Basket, version: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build(basket, version)


def test_longest_string_fits_both_encodings() -> None:
    for version in (0, 2):
        basket = Basket(items=[Item(name="x" * 32767)])
        assert parse(Basket, version, build(basket, version)) == basket
    longer = write_uvarint(2) + write_uvarint(32769) + b"x" * 32768 + bytes(5) + bytes(2)
    with pytest.raises(MalformedFrame, match="32768"):
        parse(Basket, 2, longer)


def test_counts_are_compared_with_the_remaining_bytes() -> None:
    with pytest.raises(MalformedFrame, match="2147483647 elements"):
        parse(metadata.Response, 0, b"\x7f\xff\xff\xff" + bytes(20))
    with pytest.raises(MalformedFrame):
        parse(offset_delete.Request, 0, b"\x00\x01g\x00\x00\x00\x02" + bytes(4))


@pytest.mark.slow
def test_the_elements_of_a_request_are_limited_over_all_its_lists() -> None:
    head, request = bytes(4), alter_partition_reassignments.Request
    partition = bytes(4) + b"\0" + b"\0"  # null replicas do not raise the number of elements left
    partitions = b"\1" + write_uvarint(ELEMENTS_MAX // 2 + 1) + partition * (ELEMENTS_MAX // 2) + b"\0"
    tags = b"\1\1" + b"\x64" + b"\7\0" * 100
    topics = {
        "the most elements": write_uvarint(2) + partitions,
        "too many in one list": write_uvarint(ELEMENTS_MAX + 2) + b"\1\1\0" * (ELEMENTS_MAX + 1),
        "too many in two lists": write_uvarint(3) + partitions * 2,
        "too many tagged fields": write_uvarint(ELEMENTS_MAX // 100 + 1) + tags * (ELEMENTS_MAX // 100),
    }
    found = parse(request, 0, head + topics.pop("the most elements") + b"\0")
    assert len(found.topics[0].partitions) == ELEMENTS_MAX // 2
    for name, frame in topics.items():
        with pytest.raises(MalformedFrame, match=f"more than {ELEMENTS_MAX} elements"):
            pytest.fail(f"{name}: {len(parse(request, 0, head + frame).topics)}")


def test_bytes_after_a_request_are_ignored_and_after_a_response_refused() -> None:
    data = build(metadata.Request(), 1)
    assert parse(metadata.Request, 1, data + b"more") == metadata.Request()
    assert parse_prefix(metadata.Response, 1, build(metadata.Response(), 1) + b"more")[1] == 12
    with pytest.raises(MalformedFrame, match="4 bytes left over"):
        parse(metadata.Response, 1, build(metadata.Response(), 1) + b"more")


def test_records_are_a_view_of_the_frame() -> None:
    data = produce.PartitionProduceData(records=b"r" * 100)
    request = produce.Request(topic_data=[produce.TopicProduceData(name="t", partition_data=[data])])
    for padding in (0, 100_000):
        frame = bytearray(padding) + build(request, 9)
        parsed = parse(produce.Request, 9, memoryview(frame), padding)
        records = parsed.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        records[:2] = b"!!"
        assert b"!!rrr" in frame


@pytest.mark.parametrize("size", [0, 10, LARGE_BYTES - 1, LARGE_BYTES, 3 * LARGE_BYTES])
def test_large_records_stay_buffers_of_their_own(size: int) -> None:
    whole, half = bytes(size), bytes(size // 2)
    partitions = [fetch.PartitionData(records=whole), fetch.PartitionData(records=[half, half]), fetch.PartitionData()]
    response = fetch.Response(responses=[fetch.FetchableTopicResponse(partitions=partitions)])
    for version in (4, 12, 18):
        chunks = build_chunks(response, version)
        assert b"".join(chunks) == build(response, version)
        assert sum(chunk is whole for chunk in chunks) == (size >= LARGE_BYTES)
        assert sum(chunk is half for chunk in chunks) == 2 * (size // 2 >= LARGE_BYTES)
        parsed = parse(fetch.Response, version, build(response, version)).responses[0].partitions
        assert [each.records for each in parsed] == [whole, half + half, None]


@given(st.integers(0, (1 << 32) - 1))
def test_varints_survive(value: int) -> None:
    data = write_uvarint(value)
    assert read_uvarint(data, 0) == (value, len(data))


@pytest.mark.parametrize("data", ["8080808080", "808080808001", "ffffffff7f", "ffffffffff01"])
def test_varints_end(data: str) -> None:
    with pytest.raises((MalformedFrame, IndexError)):
        read_uvarint(bytes.fromhex(data), 0)


def test_tags_end() -> None:
    assert skip_tagged(b"\x02\x00\x01a\x05\x00zz", 0) == 6
    for broken in (b"\xff\xff\xff\xff\x0f", b"\x01\x00\x05a", b"\x03\x00\x00"):
        with pytest.raises((MalformedFrame, IndexError)):
            skip_tagged(broken, 0)


def test_unknown_tags_have_a_limit() -> None:
    assert skip_tagged(b"\x7f" + b"\7\0" * 127, 0) == 255
    with pytest.raises(MalformedFrame, match="128 tagged fields"):
        skip_tagged(b"\x80\1" + b"\7\0" * 128, 0)


def test_metadata_records_are_framed() -> None:
    record = TopicRecord(name="t", topic_id=b"i" * 16)
    framed = frame_record(record)
    assert framed == b"\x01\x02\x00\x02t" + b"i" * 16 + b"\x00"
    assert unframe_record(memoryview(framed)) == record
    assert [by_key[cls._key] for cls in RECORDS] == list(RECORDS)
    for broken in (b"", b"\x02" + framed[1:], b"\x01\x7f\x00", b"\x01\x02\x09", framed[:-1], framed + b"\x00"):
        with pytest.raises(Damage):
            unframe_record(broken)


def test_coordinators_records_have_a_kind_or_a_version() -> None:
    key, value = group.GroupMetadataKey(group="g"), group.GroupMetadataValue(protocol_type="consumer", leader=None)
    assert prefixed.build_stored(key) == b"\x00\x02\x00\x01g"
    assert prefixed.parse_stored(group.GroupMetadataKey, prefixed.build_stored(key)) == key
    for version in range(5):
        data = prefixed.build_stored(value, version)
        assert prefixed.prefix_of(data) == version
        assert prefixed.parse_stored(group.GroupMetadataValue, data) == value
    for broken in (b"\x00", b"\x00\x01\x00\x01g", b"\x00\x02\x00\x05g"):
        with pytest.raises(Damage):
            prefixed.parse_stored(group.GroupMetadataKey, broken)
    with pytest.raises(Damage):
        prefixed.parse_stored(group.GroupMetadataValue, b"\x00\x05")
