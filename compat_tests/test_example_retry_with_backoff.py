"""Tests that each payment is written to one final topic, once, after the necessary number of attempts. No attempt is
too early, payments with the same key stay in order, and dead letters name their source.

Apache Kafka has no scheduled delivery, so there the times are not compared.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Message
from pyspark.sql import SparkSession

from compat_tests.reading import stored
from kpybroker.spark import Cluster
from oracle.target import Target
from spark_examples import retry_with_backoff
from spark_examples.retry_with_backoff import ATTEMPTS, COUNT, DELAYS_MS, DLQ, Topics, payments, run_stream

pytestmark = pytest.mark.full


class Outcome:
    """The contents of the topics, by the number of a payment."""

    def __init__(self, bootstrap: str, topics: Topics) -> None:
        self.topics = topics
        self.tried = defaultdict[int, list[Message]](list)
        """The records of each payment that were tried, in this order."""
        for message in stored(bootstrap, topics.payments):
            self.tried[id_of(message)].append(message)
        for messages in self.tried.values():
            messages.sort(key=lambda message: int(headers_of(message).get(ATTEMPTS, b"0")))
        self.paid, self.dead = stored(bootstrap, topics.paid), stored(bootstrap, topics.dead)


def id_of(message: Message) -> int:
    return int(json.loads(message.value())["id"])


def headers_of(message: Message) -> dict[str, bytes]:
    return dict(message.headers() or [])


@pytest.fixture
def finished(spark: SparkSession, target: Target, tmp_path: Path) -> Topics:
    return retry_with_backoff.main(Cluster(target.bootstrap), tmp_path)


def check(outcome: Outcome) -> None:
    refusals = {number: json.loads(record.value)["refusals"] for number, record in enumerate(payments())}
    assert len(refusals) == COUNT
    assert sorted(map(id_of, [*outcome.paid, *outcome.dead])) == list(range(COUNT))
    for number, messages in outcome.tried.items():
        assert len(messages) == min(refusals[number], len(DELAYS_MS)) + 1
        assert {(message.partition(), message.key(), message.value()) for message in messages} == {
            (messages[0].partition(), messages[0].key(), messages[0].value())
        }
    for message in outcome.paid:
        first = outcome.tried[id_of(message)][0]
        assert (message.key(), message.value(), message.headers()) == (first.key(), first.value(), first.headers())
        assert refusals[id_of(message)] <= len(DELAYS_MS)
    for message in outcome.dead:
        first = outcome.tried[id_of(message)][0]
        assert (message.key(), message.value()) == (first.key(), first.value())
        facts = {"topic": first.topic(), "partition": first.partition(), "offset": first.offset()}
        facts |= {"message": "the bank refuses the payment", "delivery.count": len(DELAYS_MS) + 1}
        added = [(f"{DLQ}{name}", str(value).encode()) for name, value in facts.items()]
        assert message.headers() == [*first.headers(), *added]
        assert refusals[id_of(message)] > len(DELAYS_MS)


def test_each_payment_gets_to_one_final_topic(target: Target, finished: Topics) -> None:
    check(Outcome(target.bootstrap, finished))


def test_no_attempt_is_early(target: Target, target_name: str, finished: Topics) -> None:
    outcome = Outcome(target.bootstrap, finished)
    delivers = target_name != "kafka"
    for message in [*outcome.paid, *outcome.dead]:
        retried = outcome.tried[id_of(message)][1:]
        sent_ms = [each.timestamp()[1] for each in [*retried, message]]
        for number, each in enumerate(retried):
            assert ("deliver-accepted" in headers_of(each)) == delivers
            assert not delivers or sent_ms[number + 1] >= sent_ms[number] + DELAYS_MS[number]


def test_equal_payments_keep_their_order(target: Target, finished: Topics) -> None:
    outcome = Outcome(target.bootstrap, finished)
    for end in outcome.paid, outcome.dead:
        alike = defaultdict(list)
        for message in end:
            alike[message.key(), len(outcome.tried[id_of(message)])].append(id_of(message))
        assert all(numbers == sorted(numbers) for numbers in alike.values())
        assert max(map(len, alike.values())) > 1


def test_repeated_batches_are_skipped(spark: SparkSession, target: Target, finished: Topics, tmp_path: Path) -> None:
    """The test first deletes the last file of the checkpoint, as if the job was killed between its own commit and
    Spark's; then it deletes the whole checkpoint."""
    commits = sorted((tmp_path / "payments" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    for file in commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc"):
        file.unlink()
    assert run_stream(spark, Cluster(target.bootstrap), finished, tmp_path) == 0
    assert commits[-1].exists(), "the batch was not run again"
    assert run_stream(spark, Cluster(target.bootstrap), finished, tmp_path / "new") == 0
    check(Outcome(target.bootstrap, finished))
