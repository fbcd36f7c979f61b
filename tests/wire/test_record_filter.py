"""Tests of the language that selects records: it agrees with a plain evaluation, and refuses all other texts."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.errors import ConfigError
from kpybroker.wire.records.batch import Record
from kpybroker.wire.records.record_filter import DEPTH_MAX, TEXT_MAX, parse_filter
from tests.wire.expressions import Told, expressions, records


@given(expressions, st.lists(records, max_size=5))
def test_an_expression_agrees_with_python(told: Told, found: list[Record]) -> None:
    text, meaning = told
    assert list(map(parse_filter(text).matches, found)) == [bool(meaning(record)) for record in found]


@given(st.lists(st.sampled_from(["t", "f"]), min_size=3, max_size=3), st.sampled_from(["and", "or"]), st.booleans())
def test_not_binds_most_and_or_least(values: list[str], first: str, has_not: bool) -> None:
    """As in Python, whose evaluation is the reference."""
    second = "or" if first == "and" else "and"
    shown = f"{'not ' * has_not}{values[0]} {first} {values[1]} {second} {values[2]}"
    ours = re.sub(r"\bt\b", "tombstone", re.sub(r"\bf\b", "exists key", shown))
    is_so = eval(shown, {"t": True, "f": False})  # made of the words above
    assert parse_filter(ours).matches(Record(0, 0, None, None)) == is_so


@given(st.text(max_size=30) | st.lists(st.sampled_from(["(", ")", "not", "key", "==", '"a"', ",", "in"])).map(" ".join))
def test_any_other_text_is_refused(text: str) -> None:
    """No other exception is raised."""
    with contextlib.suppress(ConfigError):
        parse_filter(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected one of header.NAME, tag, key, timestamp, tombstone, exists, found the end, at character 1"),
        ("headers.region == 'eu'", "found headers.region, at character 1"),
        ("headers.region == 'eu'", "; did you mean header?"),
        ("header.region = 'eu'", "expected one of ==, !=, in, prefix, found =, at character 15"),
        ("header.region == eu", "expected text in quotes, found eu, at character 18"),
        ("header. == 'eu'", "expected one of header.NAME"),
        ("tag in ('a' 'b')", "expected ), found 'b', at character 13"),
        ("tag in ()", "expected text in quotes, found ), at character 9"),
        ("tag == 'a", "the text has no end, at character 8"),
        ("tag == 'a' && key == 'b'", "cannot read '&', at character 12"),
        ("tag == 'a' key == 'b'", "expected and, or, or the end, found key"),
        ("timestamp > 'noon'", "not a time; write it like '2026-01-31T12:00:00Z'"),
        ("timestamp > tag", "expected milliseconds, or a time in quotes, found tag"),
        ("timestamp in (1)", "expected one of ==, !=, <, <=, >, >=, found in"),
        ("not " * (DEPTH_MAX + 1) + "tombstone", f"nested more than {DEPTH_MAX} deep"),
        ("(" * (DEPTH_MAX + 1) + "tombstone" + ")" * (DEPTH_MAX + 1), f"nested more than {DEPTH_MAX} deep"),
        ("tag == '" + "x" * TEXT_MAX + "'", f"at most {TEXT_MAX}"),
    ],
)
def test_the_error_names_the_place_and_the_way_out(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        parse_filter(text)


def test_the_limits_are_reached() -> None:
    record = Record(0, 0, b"k", None)
    assert parse_filter("not " * DEPTH_MAX + "tombstone").matches(record)
    assert parse_filter("(" * DEPTH_MAX + "tombstone" + ")" * DEPTH_MAX).matches(record)
    longest = "tombstone" + " and tombstone" * ((TEXT_MAX - 9) // 14)
    assert parse_filter(longest.ljust(TEXT_MAX)).matches(record)


def test_times_are_in_utc_unless_they_say_otherwise() -> None:
    record = Record(0, 1_767_225_600_000, None, b"")
    for time in ("2026-01-01", "2026-01-01T00:00:00", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00"):
        assert parse_filter(f"timestamp == '{time}'").matches(record)
