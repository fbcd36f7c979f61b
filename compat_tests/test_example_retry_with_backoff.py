"""Tests that each payment is written to one final topic, once, after the necessary number of attempts. No attempt is
too early, and payments with the same key stay in order."""

import json
from collections import defaultdict
from itertools import chain
from pathlib import Path

import pytest
from confluent_kafka import Message
from pyspark.sql import SparkSession

from compat_tests.reading import stored
from kpybroker.spark import Cluster
from oracle.target import Target
from spark_examples import retry_with_backoff
from spark_examples.feeding import Record
from spark_examples.retry_with_backoff import COUNT, DELAYS_MS, Topics, payments, run_stage

pytestmark = pytest.mark.full

OURS = ["retry.topic", "retry.partition", "retry.offset", "retry.attempts"]
Place = tuple[str, int, int]


class Outcome:
    """The contents of the topics, by the position of a payment's first record."""

    def __init__(self, bootstrap: str, topics: Topics) -> None:
        messages = {topic: stored(bootstrap, topic) for topic in (*topics.stages, topics.paid, topics.dead)}
        first, *self.retries = (messages[topic] for topic in topics.stages)
        self.sent = {(each.topic(), each.partition(), each.offset()): each for each in first}
        self.paid, self.dead = messages[topics.paid], messages[topics.dead]


def place_of(message: Message) -> Place:
    facts = dict(message.headers())
    return facts["retry.topic"].decode(), int(facts["retry.partition"]), int(facts["retry.offset"])


def number_in(message: Message, name: str) -> int:
    return int(dict(message.headers())[name])


def refusals_of(message: Message | Record) -> int:
    value = message.value if isinstance(message, Record) else message.value()
    return int(json.loads(value)["refusals"])


@pytest.fixture
def finished(spark: SparkSession, target: Target, tmp_path: Path) -> Topics:
    return retry_with_backoff.main(Cluster(target.bootstrap), tmp_path)


def check(outcome: Outcome) -> None:
    assert len(outcome.sent) == COUNT
    assert sorted(map(place_of, [*outcome.paid, *outcome.dead])) == sorted(outcome.sent)
    for end, tries_of in (outcome.paid, lambda refusals: refusals + 1), (outcome.dead, lambda _: len(DELAYS_MS) + 1):
        for message in end:
            first = outcome.sent[place_of(message)]
            assert (message.key(), message.value()) == (first.key(), first.value())
            assert message.headers()[: -len(OURS)] == first.headers()
            assert [name for name, _ in message.headers()[-len(OURS) :]] == OURS
            assert number_in(message, "retry.attempts") == tries_of(refusals_of(message))
    assert all(refusals_of(message) <= len(DELAYS_MS) for message in outcome.paid)
    assert all(refusals_of(message) > len(DELAYS_MS) for message in outcome.dead)


def test_each_payment_gets_to_one_final_topic(target: Target, finished: Topics) -> None:
    outcome = Outcome(target.bootstrap, finished)
    check(outcome)
    assert [len(messages) for messages in outcome.retries] == [
        sum(refusals_of(payment) > attempts for payment in payments()) for attempts in range(len(DELAYS_MS))
    ]


def test_no_attempt_is_early(target: Target, finished: Topics) -> None:
    outcome = Outcome(target.bootstrap, finished)
    landed_ms: dict[tuple[Place, int], int] = {}
    for message in [*outcome.paid, *outcome.dead, *chain(*outcome.retries)]:
        landed_ms[place_of(message), number_in(message, "retry.attempts")] = message.timestamp()[1]
    for delay_ms, retried in zip(DELAYS_MS, outcome.retries, strict=True):
        for message in retried:
            tries, due_ms = number_in(message, "retry.attempts"), number_in(message, "retry.due")
            before = landed_ms.get((place_of(message), tries - 1), outcome.sent[place_of(message)].timestamp()[1])
            assert landed_ms[place_of(message), tries + 1] >= due_ms >= before + delay_ms


def test_equal_payments_keep_their_order(target: Target, finished: Topics) -> None:
    outcome = Outcome(target.bootstrap, finished)
    for end in outcome.paid, outcome.dead:
        alike = defaultdict(list)
        for message in end:
            alike[message.key(), number_in(message, "retry.attempts")].append(number_in(message, "retry.offset"))
        assert all(offsets == sorted(offsets) for offsets in alike.values())
        assert max(map(len, alike.values())) > 1


def test_repeated_batches_are_skipped(spark: SparkSession, target: Target, finished: Topics, tmp_path: Path) -> None:
    """The test first deletes the last file of the checkpoint, as if the job was killed between its own commit and
    Spark's; then it deletes the whole checkpoint."""
    for attempts in range(len(finished.stages)):
        commits = sorted((tmp_path / f"stage-{attempts}" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
        for file in commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc"):
            file.unlink()
        run_stage(spark, Cluster(target.bootstrap), finished, attempts, tmp_path)
        assert commits[-1].exists(), "the batch was not run again"
        run_stage(spark, Cluster(target.bootstrap), finished, attempts, tmp_path / "new")
    check(Outcome(target.bootstrap, finished))
