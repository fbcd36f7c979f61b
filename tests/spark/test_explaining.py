"""A stack trace of Spark is summarised in one line; compat_tests/test_spark_errors.py has real ones."""

from __future__ import annotations

import pytest

from kpybroker.spark import explained

TRACE = """An error occurred while calling o99.count.
: java.util.concurrent.ExecutionException: org.apache.kafka.common.errors.{named}: the broker's words
\tat java.base/java.util.concurrent.CompletableFuture.reportGet(CompletableFuture.java:396)
Caused by: org.apache.kafka.common.errors.{named}: the broker's words
\tat a.b.C.d(C.java:1)
"""


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("UnknownTopicOrPartitionException", "create it first"),
        ("OffsetOutOfRangeException", "checkpoint is for another topic"),
        ("TimeoutException", "no longer answers"),
        ("SaslAuthenticationException", "refuses this user"),
    ],
)
def test_known_errors_are_explained_with_the_remedy(named: str, told: str) -> None:
    line = explained(RuntimeError(TRACE.format(named=named)))
    assert told in line
    assert line.endswith(f"({named}: the broker's words)")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TRACE.format(named="StrangeException"), "StrangeException: the broker's words"),
        ("a\nb", "a"),
        ("", "ValueError"),
    ],
)
def test_unknown_errors_are_shown_unchanged(text: str, line: str) -> None:
    assert explained(ValueError(text)) == line
