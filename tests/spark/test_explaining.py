"""Tests that a stack trace of Spark is summarised in one line; compat_tests/test_spark_errors.py tests real stack
traces."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

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
        ("SaslAuthenticationException", "does not let this user in"),
        ("UnsupportedSaslMechanismException", "other mechanisms"),
        ("SslAuthenticationException", "TLS handshake failed"),
        ("ClusterAuthorizationException", "ACL WRITE"),
        ("GroupAuthorizationException", "ACL READ"),
        ("TopicAuthorizationException", "ACL READ"),
    ],
)
def test_known_errors_are_explained_with_the_remedy(named: str, told: str) -> None:
    line = explained(RuntimeError(TRACE.format(named=named)))
    assert told in line
    assert line.endswith(f"({named}: the broker's words)")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("of", "named"),
    [
        ("Not authorized to access topics: [t]", "may not read t: it needs the ACL READ on that topic"),
        (
            "[t]\n\tat a.sql.kafka010.KafkaWriter$.write(KafkaWriter.scala:72)",
            "may not write t: it needs the ACL WRITE",
        ),
        ('[t]\nCurrent Available Offsets: {KafkaV2[Subscribe[t]]: {"t":{"0":10}}}', "may not read t"),
        ('[out]\nCurrent Available Offsets: {KafkaV2[Subscribe[t]]: {"t":{"0":10}}}', "may not write out"),
        ("[t]\nCurrent Available Offsets: {}", "may not read t"),
        ("[a, b]", "may not read a, b"),
    ],
)
def test_the_missing_right_is_named(of: str, named: str) -> None:
    of = of if of.startswith("Not") else f"Not authorized to access topics: {of}"
    assert named in explained(RuntimeError(f"x: org.apache.kafka.common.errors.TopicAuthorizationException: {of}"))


@pytest.mark.parametrize("resource", ["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"])
def test_a_refusal_of_confluent_kafka_is_told(resource: str) -> None:
    code = f"{resource}_AUTHORIZATION_FAILED"
    line = explained(KafkaException(KafkaError(getattr(KafkaError, code), "the broker's words")))
    assert line.endswith(f"({code}: the broker's words)")
    assert "ACL" in line


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
