"""The scan accepts and refuses the same bytes as a simple decoder of the format, and returns the same results."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.batch import put_varint
from kpybroker.wire.records.record_scan import Walk, walk_through
from kpybroker.wire.records.small_batches import are_sound

EVER = 1 << 64
FIRST_INDEXES = [0, 0, 0, 62, 127, 8190, 16_383, (1 << 20) - 2]
some = settings(max_examples=200, deadline=None)
lengths = st.sampled_from([-1, 0, 1, 7, 62, 63, 64, 65, 127, 8191, 8192])
names = lengths.map(lambda size: max(size, 0))
FAR = [1 << 20, 1 << 40, -(1 << 62), (1 << 63) - 1, -(1 << 63)]
deltas = st.sampled_from([0, 0, 0, 1, -1, 63, 64, -64, -65, 8191, 8192, -8193, *FAR])


class Form(NamedTuple):
    """The parts of a record. A length of -1 stands for null, and `odd` varints are a byte longer than necessary."""

    delta: int
    key: int
    value: int
    headers: tuple[tuple[int, int], ...] = ()
    odd: frozenset[str] = frozenset()


odd = st.sets(st.sampled_from(["size", "delta", "offset", "key", "value"]), max_size=1).map(frozenset)
headers = st.lists(st.tuples(names, lengths), max_size=2).map(tuple)
forms = st.builds(Form, deltas, lengths, lengths, headers, st.just(frozenset()) | odd)
plain_forms = st.builds(
    Form, st.sampled_from([0, 5]), st.sampled_from([-1, 7, 16]), lengths, st.just(()), st.just(frozenset())
)


def encoded(form: Form, index: int) -> bytes:
    body = bytearray(1)
    _put(body, form.delta, "delta" in form.odd)
    _put(body, index, "offset" in form.odd)
    for name, size in (("key", form.key), ("value", form.value)):
        _put(body, size, name in form.odd)
        body += b"x" * size
    put_varint(body, len(form.headers))
    for sizes in form.headers:
        for size in sizes:
            put_varint(body, size)
            body += b"h" * size
    whole = bytearray()
    _put(whole, len(body), "size" in form.odd)
    return bytes(whole + body)


def _put(out: bytearray, number: int, longer: bool) -> None:
    put_varint(out, number)
    if longer:
        out[-1] |= 0x80
        out.append(0)


class Facts(NamedTuple):
    newest: int
    without_key: list[int]
    out_of_time: list[int]


def reference(plain: bytes, first: int, count: int, earliest: int, latest: int) -> Facts:
    """Decode records field by field. Raises ValueError or IndexError if the bytes are not `count` records."""
    facts, at = Facts(-(1 << 63), [], []), 0
    for index in range(first, first + count):
        size, at = _number(plain, at)
        end = at + size
        if size < 0 or end > len(plain):
            raise ValueError
        delta, at = _number(plain, at + 1, 10)
        offset, at = _number(plain, at)
        key, at = _number(plain, at)
        value, at = _number(plain, at + max(key, 0))
        number, at = _number(plain, at + max(value, 0))
        if offset != index or key < -1 or value < -1 or number < 0:
            raise ValueError
        for _ in range(min(number, len(plain))):
            for least in (0, -1):
                size, at = _number(plain, at)
                if size < least:
                    raise ValueError
                at += max(size, 0)
        if at != end:
            raise ValueError
        facts = facts._replace(newest=max(facts.newest, delta))
        if key < 0:
            facts.without_key.append(index)
        if not earliest <= delta <= latest:
            facts.out_of_time.append(index)
    if at != len(plain):
        raise ValueError
    return facts


def _number(plain: bytes, at: int, most: int = 5) -> tuple[int, int]:
    value = 0
    for shift in range(most):
        byte = plain[at + shift]
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + shift + 1
    raise ValueError


def mutated(plain: bytes, data: Any) -> bytes:
    """The bytes with a few bytes changed, inserted or removed, usually in fields."""
    out = bytearray(plain)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, min(len(out), 30) - 1) | st.integers(0, len(out) - 1)) if out else 0
        byte = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFF]) | st.integers(0, 255))
        match data.draw(st.sampled_from(["change", "put in", "take away", "cut"])):
            case "change":
                out[at : at + 1] = bytes([byte])
            case "put in":
                out[at:at] = bytes([byte])
            case "take away":
                del out[at : at + 1]
            case _:
                del out[len(out) - at :]
    return bytes(out)


@pytest.mark.slow
@given(
    st.lists(forms, min_size=1, max_size=6) | st.lists(plain_forms, min_size=1, max_size=80),
    st.sampled_from(FIRST_INDEXES),
    st.sampled_from([(-EVER, EVER), (0, 63), (-64, 8191), (1, 0)]),
    st.booleans(),
    st.none() | st.integers(1, 300),
    st.data(),
)
@example([Form(0, 7, 64)] * 3, 0, (-EVER, EVER), True, None, None)
@example([Form(-(1 << 63), -1, -1)], 0, (-EVER, EVER), False, None, None)
@example([Form(0, -1, 3, (), frozenset({"key"}))] * 3, 0, (-EVER, EVER), True, None, None)
@some
def test_the_scan_agrees_with_the_simple_reader(
    of: list[Form], first: int, bounds: tuple[int, int], needs_keys: bool, piece: int | None, data: Any
) -> None:
    plain = b"".join(encoded(form, first + number) for number, form in enumerate(of))
    if data is not None:
        plain = mutated(plain, data)
    found = Walk(*bounds, seen=first, needs_keys=needs_keys)
    size = piece or len(plain) or 1
    pieces = (plain[at : at + size] for at in range(0, len(plain), size))
    work = walk_through(found, pieces, first + len(of))
    try:
        expected = reference(plain, first, len(of), *bounds)
    except (ValueError, IndexError):
        with pytest.raises(KafkaError) as refusal:
            list(work)
        assert refusal.value.code == ErrorCode.INVALID_RECORD
        assert first or not any(are_sound(plain, len(of), form.delta) for form in of)
        return
    list(work)
    without_key = expected.without_key if needs_keys else []
    assert (found.newest, found.without_key, found.out_of_time) == (expected.newest, without_key, expected.out_of_time)
    assert found.seen == first + len(of)
    if not first:
        assert are_sound(plain, len(of), expected.newest)
        assert not are_sound(plain, len(of), expected.newest + 1)
        assert not are_sound(plain, len(of), expected.newest - 1)
        assert not are_sound(plain, len(of) + 1, expected.newest)
        assert not are_sound(plain + b"\0", len(of), expected.newest)


RECORDS = [Form(0, 3, 2), Form(0, -1, 70), Form(70, 66, -1), Form(-1, 2, 3, ((1, 2), (65, -1))), Form(0, 0, 8200)]


@pytest.mark.parametrize("first", FIRST_INDEXES[2:])
def test_every_byte_of_a_length_and_of_a_number_matters(first: int) -> None:
    """Each byte outside keys, values and headers is replaced by other values in turn, including all that differ in one
    bit."""
    plain = b"".join(encoded(form, first + number) for number, form in enumerate(RECORDS))
    for at in (at for at, byte in enumerate(plain) if byte not in b"xh"):
        near = {plain[at] ^ 1 << bit for bit in range(8)} | {plain[at] + 1 & 0xFF, plain[at] - 1 & 0xFF, 1, 3}
        for byte in near - {plain[at]}:
            other = plain[:at] + bytes([byte]) + plain[at + 1 :]
            found = Walk(-64, 64, seen=first)
            try:
                expected = reference(other, first, len(RECORDS), -64, 64)
            except (ValueError, IndexError):
                with pytest.raises(KafkaError):
                    list(walk_through(found, (other,), first + len(RECORDS)))
                continue
            list(walk_through(found, (other,), first + len(RECORDS)))
            assert Facts(found.newest, found.without_key, found.out_of_time) == expected, (at, byte)


def test_a_record_whose_last_header_is_truncated_is_incomplete() -> None:
    plain = encoded(Form(0, 1, 1, ((1, 60),)), 0)
    for size in range(len(plain)):
        assert not are_sound(plain[:size], 1, 0)
        assert Walk(-EVER, EVER).some(plain[:size], 0, 1) == 0


@pytest.mark.parametrize("count", [0, -1, -(1 << 31)])
def test_an_impossible_record_count_is_refused(count: int) -> None:
    assert not are_sound(encoded(Form(0, 1, 1), 0), count, 0)
    assert not are_sound(b"", count, 0)
