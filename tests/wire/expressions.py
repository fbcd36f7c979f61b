"""Expressions of record filters for property tests, with their meaning in Python, and records for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from kpybroker.wire.records.batch import Record

NAMES = ("tag", "region", "a-b.c", "two words", "and")
TEXTS = ("", "a", "b", "ab", 'quo"te', "it's", "\\", "zażółć", "in")
TIMES = (-1, 0, 1_767_225_600_000)
contents = st.none() | st.sampled_from(TEXTS).map(str.encode)
records = st.builds(
    Record,
    st.just(0),
    st.sampled_from(TIMES),
    contents,
    contents,
    st.lists(st.tuples(st.sampled_from(NAMES), contents), max_size=4).map(tuple),
)
Told = tuple[str, Callable[[Record], Any]]
"""An expression, and what it says in Python."""


def quoted(text: str) -> str:
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


def header(name: str) -> Told:
    shown = f"header.{name}" if re.fullmatch(r"[\w.-]+", name) else f"header.{quoted(name)}"
    return shown, lambda record: dict(record.headers).get(name)


fields: st.SearchStrategy[Told] = st.sampled_from(
    [("key", lambda record: record.key), ("tag", header("tag")[1]), *map(header, NAMES)]
)
texts = st.sampled_from(TEXTS)
comparisons: st.SearchStrategy[Told] = st.one_of(
    st.just(("tombstone", lambda record: record.value is None)),
    st.builds(lambda f, t: (f"{f[0]} == {quoted(t)}", lambda r: f[1](r) == t.encode()), fields, texts),
    st.builds(lambda f, t: (f"{f[0]} != {quoted(t)}", lambda r: f[1](r) != t.encode()), fields, texts),
    st.builds(
        lambda f, t: (f"{f[0]} prefix {quoted(t)}", lambda r: f[1](r) is not None and f[1](r).find(t.encode()) == 0),
        fields,
        texts,
    ),
    st.builds(
        lambda f, ts: (f"{f[0]} in ({', '.join(map(quoted, ts))})", lambda r: f[1](r) in [t.encode() for t in ts]),
        fields,
        st.lists(texts, min_size=1, max_size=3),
    ),
    st.builds(lambda f: (f"exists {f[0]}", lambda r: f[1](r) is not None), fields),
    st.builds(lambda t: (f"timestamp < {t}", lambda r: r.timestamp < t), st.sampled_from(TIMES)),
    st.builds(lambda t: (f"timestamp >= {t}", lambda r: r.timestamp >= t), st.sampled_from(TIMES)),
)
expressions: st.SearchStrategy[Told] = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds(lambda e: (f"not ({e[0]})", lambda r: not e[1](r)), inner),
        st.builds(lambda a, b: (f"({a[0]}) and ({b[0]})", lambda r: a[1](r) and b[1](r)), inner, inner),
        st.builds(lambda a, b: (f"({a[0]}) or ({b[0]})", lambda r: a[1](r) or b[1](r)), inner, inner),
    ),
    max_leaves=6,
)
