"""The set of redriven offsets: what it contains, and that a commit holds it."""

from __future__ import annotations

import base64
import itertools
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.cli.redriven import FORM, METADATA_MAX, TEXT_MAX, Redriven, parse_redriven

OFFSETS = st.integers(0, 60)
PAIRS = st.lists(st.tuples(OFFSETS, OFFSETS).map(lambda each: (min(each), max(each) + 1)), max_size=8)


def members(found: Redriven) -> set[int]:
    return {offset for offset in range(70) if offset in found}


def is_in_order(found: Redriven) -> bool:
    """Whether the ranges are neither empty nor touch."""
    bounds = [found.committed, *(bound for each in found.ranges for bound in each)]
    return all(one < other for one, other in itertools.pairwise(bounds))


@given(OFFSETS, PAIRS, PAIRS)
def test_a_set_contains_what_was_joined(
    committed: int, some: list[tuple[int, int]], more: list[tuple[int, int]]
) -> None:
    found = Redriven(committed).joined(some).joined(more)
    expected = set(range(committed)).union(*(range(first, end) for first, end in some + more))
    assert members(found) == expected
    assert is_in_order(found)
    assert found.joined([]) == found


@given(OFFSETS, PAIRS)
def test_parsing_inverts_encoding(committed: int, ranges: list[tuple[int, int]]) -> None:
    found = Redriven(committed).joined(ranges)
    text = found.metadata
    assert text is not None
    assert parse_redriven(found.committed, text) == found
    assert bool(text) == bool(found.ranges)


@given(
    pages=st.lists(st.lists(st.sampled_from(["letter", "left", "marker"]), max_size=12), max_size=6),
    done=PAIRS,
)
def test_reading_settles_all_letters_but_those_left(pages: list[list[str]], done: list[tuple[int, int]]) -> None:
    """Each letter that was read is in the set unless it is left, and no other letter is."""
    found = Redriven().joined(done)
    begin, letters, left = 0, set[int](), set[int]()
    for page in pages:
        end = begin + len(page)
        stored = [begin + at for at, kind in enumerate(page) if kind != "marker"]
        holes = [begin + at for at, kind in enumerate(page) if kind == "left" and begin + at not in found]
        before = found
        found = found.read(begin, end, stored, holes)
        letters |= set(stored)
        left |= set(holes)
        begin = end
        assert is_in_order(found)
        assert members(before) <= members(found)
        assert not left & members(found)
        assert letters - left <= members(found)
        unread = {offset for offset in range(begin, 70) if offset not in Redriven().joined(done)}
        assert not unread & members(found)


def test_markers_make_no_ranges() -> None:
    """Letters that are left and transaction markers alternate, as an application writes them that is exactly once."""
    left = range(0, 10_000, 2)
    assert Redriven().read(0, 10_000, left, left) == Redriven()
    found = Redriven().read(0, 1000, range(0, 1000, 2), range(0, 1000, 2))
    assert found.read(1000, 1001, [], []) == found
    sent = found.read(1000, 1100, range(1000, 1100, 2), [])
    assert sent == Redriven(0, ((1000, 1100),))
    assert sent.read(1100, 1101, [], []).ranges == ((1000, 1101),), "so that the next letters touch it"


def test_what_does_not_fit_has_no_metadata() -> None:
    """Some 2,000 gaps at random fit, and far more that are regular."""
    chance = random.Random(1)
    bounds = sorted(chance.sample(range(1, 1_000_000), 20_000))
    ranges = tuple(zip(bounds[::2], bounds[1::2], strict=True))
    fits = [count for count in range(0, 10_000, 100) if Redriven(0, ranges[:count]).metadata is not None]
    assert fits == list(range(0, fits[-1] + 100, 100))
    assert 900 < fits[-1] < 10_000
    assert len(Redriven(0, ranges[: fits[-1]]).metadata or "") <= METADATA_MAX
    regular = tuple((at, at + 1) for at in range(1, 200_001, 2))
    text = Redriven(0, regular).metadata
    assert text is not None
    assert parse_redriven(0, text).ranges == regular
    more = tuple((at, at + 1) for at in range(1, TEXT_MAX, 2))
    assert Redriven(0, more).metadata is None, "which no reader would unpack"


def packed(text: bytes) -> str:
    return FORM + base64.b64encode(zlib.compress(text)).decode()


@pytest.mark.parametrize(
    "text",
    [
        "other",
        FORM,
        FORM + "%",
        FORM + base64.b64encode(b"other").decode(),
        packed(b""),
        packed(b"1"),
        packed(b"0+1"),
        packed(b"1+0"),
        packed(b"1+-1"),
        packed(b"1+1+1"),
        packed(b"1+9223372036854775807"),
        packed(b"1+1 " * (TEXT_MAX // 4) + b"1+1"),
        packed(b"1+1")[:-4],
        packed(b"\xff"),
    ],
)
def test_other_metadata_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_redriven(0, text)
