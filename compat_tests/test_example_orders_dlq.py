"""Tests that each order is in exactly one of the two topics, and that the headers of a dead letter point to a source
record with the same bytes."""

import json
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from compat_tests.reading import stored
from kpybroker.spark import Cluster
from oracle.target import Target
from spark_examples import orders_dlq
from spark_examples.orders_dlq import COUNT, Topics, orders

SOURCE = [f"__dlq.errors.{fact}" for fact in ("topic", "partition", "offset", "timestamp", "message")]


def is_fit(value: bytes | None) -> bool:
    """The rule for valid orders, implemented again in Python."""
    try:
        order = json.loads((value or b"").decode())
        return isinstance(order["cents"], int) and order["cents"] > 0 and "ordered" in order
    except (ValueError, KeyError):
        return False


def test_each_order_goes_one_of_two_ways(spark: SparkSession, target: Target, tmp_path: Path) -> None:
    check(target.bootstrap, orders_dlq.main(Cluster(target.bootstrap), tmp_path))


def check(bootstrap: str, topics: Topics) -> None:
    accepted, dead = stored(bootstrap, topics.accepted), stored(bootstrap, topics.dead)
    sent = {record.key: record for record in orders()}
    assert len(sent) == COUNT
    expected = [(key.encode(), record.value, list(record.headers) or None) for key, record in sent.items()]
    found = [(message.key(), message.value(), message.headers()) for message in accepted]
    assert sorted(found, key=repr) == sorted((row for row in expected if is_fit(row[1])), key=repr)

    sources = {(m.topic(), m.partition(), m.offset()): m for m in stored(bootstrap, topics.orders)}
    for letter in dead:
        pointers = dict(letter.headers()[-len(SOURCE) :])
        assert list(pointers) == SOURCE
        topic, partition, offset, timestamp_ms = (pointers[name].decode() for name in SOURCE[:4])
        source = sources.pop((topic, int(partition), int(offset)))
        assert (letter.key(), letter.value()) == (source.key(), source.value())
        assert letter.headers()[: -len(SOURCE)] == (source.headers() or [])
        assert timestamp_ms == str(source.timestamp()[1])
        assert not is_fit(letter.value())
    assert len(dead) + len(accepted) == COUNT
    reasons = Counter(letter.headers()[-1][1] for letter in dead)
    assert len(reasons) == 5, reasons
