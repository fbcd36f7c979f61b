"""Tests of Spark, the examples and the archive over SASL_SSL with ACLs, and of the line that explains each refusal."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, NewTopic
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from compat_tests import test_example_backfill_by_timestamp as backfill
from compat_tests import test_example_orders_dlq as orders
from compat_tests import test_example_retry_with_backoff as retry
from compat_tests.conftest import wait_until_led
from compat_tests.reading import stored
from compat_tests.spark_secured import GROUP, MODULE, TOPIC, TRANSACTIONAL_ID, Right, SecuredBroker
from compat_tests.spark_secured import secured_broker as started
from kpybroker.archive import job
from kpybroker.archive.replaying import ReplayScope
from kpybroker.client.client import CommandFailed
from kpybroker.spark import Cluster, checkpoint, explained
from spark_examples import backfill_by_timestamp, orders_dlq, retry_with_backoff
from tests.certificates import sign

READ, WRITE, DESCRIBE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE
RECORDS = 30
IMPATIENT = {
    "kafka.default.api.timeout.ms": "4000",
    "kafka.request.timeout.ms": "4000",
    "kafka.max.block.ms": "4000",
    "fetchOffset.numRetries": "1",
}
ALL_THEIR_OWN: list[Right] = [
    *((TOPIC, "*", each) for each in (READ, WRITE, CREATE)),
    (GROUP, "payments-", READ),
    (TRANSACTIONAL_ID, "payments-", WRITE),
]
GUESSED = f'{MODULE} required username="reader" password="guessed";'
PLAIN = GUESSED.replace("scram.Scram", "plain.Plain")


@pytest.fixture(scope="module")
def secured(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with started(target_name, tmp_path_factory.mktemp("secured")) as broker:
        yield broker


class Pair:
    """A topic with records in two partitions, an empty topic, and a user who may read the first topic and write to the
    second."""

    def __init__(self, secured: SecuredBroker) -> None:
        name = uuid.uuid4().hex[:6]
        self.source, self.sink = f"from-{name}", f"to-{name}"
        new = [NewTopic(topic, 2, 1, config={"retention.ms": "-1"}) for topic in (self.source, self.sink)]
        for topic, made in secured.admin.create_topics(new).items():
            made.result(30)
            wait_until_led(secured.admin, topic, 2)
        producer = Producer({"bootstrap.servers": secured.broker.bootstrap})
        for number in range(RECORDS):
            producer.produce(self.source, str(number), str(number % 7), number % 2)
        assert producer.flush(30) == 0
        self.cluster = secured.user(f"of-{name}", (TOPIC, self.source, READ), (TOPIC, self.sink, WRITE))


@pytest.fixture(scope="module")
def pair(secured: SecuredBroker) -> Pair:
    return Pair(secured)


def read(spark: SparkSession, cluster: Cluster, topic: str, **options: str) -> DataFrame:
    return spark.read.format("kafka").options(**cluster.spark_options(), **IMPATIENT, subscribe=topic, **options).load()


def write(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    row = spark.createDataFrame([("batch",)], "value string").coalesce(1)
    row.write.format("kafka").options(**cluster.spark_options(), **IMPATIENT, topic=topic).save()


def copy(spark: SparkSession, reader: Cluster, source: str, writer: Cluster, sink: str, location: str) -> None:
    """Run a stream that copies the available records."""
    start = {"startingOffsets": "earliest", "subscribe": source}
    records = spark.readStream.format("kafka").options(**reader.spark_options(), **IMPATIENT, **start).load()
    query = (
        records.select("key", "value")
        .writeStream.format("kafka")
        .options(**writer.spark_options(), **IMPATIENT, topic=sink, checkpointLocation=location)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def refusal(action: Callable[[], object]) -> str:
    """The explained error. Asserts that Spark's own text contains no secret either."""
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        action()
    assert "guessed" not in str(caught.value)
    line = explained(caught.value)
    assert "\n" not in line
    return line


def test_batches_and_a_stream(spark: SparkSession, secured: SecuredBroker, tmp_path: Path) -> None:
    pair = Pair(secured)
    options = pair.cluster.spark_options()
    assert {"kafka.security.protocol", "kafka.sasl.jaas.config", "kafka.ssl.truststore.location"} < set(options)
    expected = sorted(str(number).encode() for number in range(RECORDS))
    assert sorted(bytes(row.value) for row in read(spark, pair.cluster, pair.source).collect()) == expected
    folder = tmp_path / "checkpoint"
    copy(spark, pair.cluster, pair.source, pair.cluster, pair.sink, checkpoint(folder, pair.cluster, pair.source))
    write(spark, pair.cluster, pair.sink)
    found = sorted(message.value() for message in stored(secured.broker.bootstrap, pair.sink))
    assert found == [*expected, b"batch"]
    noted = "".join(file.read_text() for file in folder.rglob("*") if file.suffix in ("", ".json") and file.is_file())
    assert pair.source in noted
    assert "of-" not in noted.replace(pair.source, "")


class TestAMissingRight:
    """Spark names the topic, but not the operation; `explained` names both."""

    def test_to_read(self, spark: SparkSession, secured: SecuredBroker, pair: Pair, tmp_path: Path) -> None:
        seer = secured.user("seer", (TOPIC, pair.source, DESCRIBE))
        wanted = f"the user may not read {pair.source}: it needs the ACL READ on that topic"
        assert wanted in refusal(read(spark, seer, pair.source).count)
        stream = partial(copy, spark, seer, pair.source, pair.cluster, pair.sink, str(tmp_path))
        assert wanted in refusal(stream)

    def test_to_see(self, spark: SparkSession, secured: SecuredBroker, pair: Pair) -> None:
        assert "needs the ACL READ" in refusal(read(spark, secured.user("blind"), pair.source).count)

    def test_to_write(self, spark: SparkSession, secured: SecuredBroker, pair: Pair, tmp_path: Path) -> None:
        other = secured.user("elsewhere", (TOPIC, "elsewhere", WRITE))
        wanted = f"the user may not write {pair.sink}: it needs the ACL WRITE on that topic"
        assert wanted in refusal(lambda: write(spark, other, pair.sink))
        stream = partial(copy, spark, pair.cluster, pair.source, other, pair.sink, str(tmp_path))
        assert wanted in refusal(stream)

    def test_to_write_anywhere(self, spark: SparkSession, secured: SecuredBroker, pair: Pair) -> None:
        seer = secured.user("onlooker", (TOPIC, pair.sink, DESCRIBE))
        assert "it needs the ACL WRITE on the topic to write to" in refusal(lambda: write(spark, seer, pair.sink))

    def test_to_use_a_group(self, spark: SparkSession, pair: Pair) -> None:
        """Spark needs a group only with this setting."""
        setting = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
        spark.conf.set(setting, "true")
        try:
            line = refusal(read(spark, pair.cluster, pair.source, groupIdPrefix="jobs").count)
        finally:
            spark.conf.unset(setting)
        assert "the user may not use the group jobs" in line
        assert "ACL READ" in line


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sasl_jaas_config": GUESSED}, "the user or the password is wrong (sasl.jaas.config)"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": PLAIN}, "the listener has other mechanisms"),
        ({"ssl_truststore_location": "{other}"}, "certificate is not trusted: name that of its authority"),
        ({"security_protocol": "PLAINTEXT"}, "its listener has another security.protocol than the job"),
        ({"security_protocol": "SSL"}, "its listener has another security.protocol than the job"),
    ],
)
def test_a_client_that_is_not_let_in(
    spark: SparkSession, secured: SecuredBroker, pair: Pair, tmp_path: Path, changes: dict[str, str], told: str
) -> None:
    (tmp_path / "other.pem").write_text(sign("another").chain_pem)
    filled = {name: text.replace("{other}", str(tmp_path / "other.pem")) for name, text in changes.items()}
    stranger = secured.seen_by("reader", **filled)
    assert told in refusal(read(spark, stranger, pair.source).count)


def test_tls_at_a_listener_without(spark: SparkSession, secured: SecuredBroker, pair: Pair) -> None:
    plain = pair.cluster._replace(bootstrap=secured.broker.bootstrap)
    assert "its listener has another security.protocol than the job" in refusal(read(spark, plain, pair.source).count)


@pytest.fixture(scope="module")
def user(secured: SecuredBroker) -> Cluster:
    """The user of the examples."""
    return secured.user("examples", *ALL_THEIR_OWN)


class TestExamples:
    """Each example runs as a user with rights on topics, groups and transactional ids, but none on the cluster."""

    def test_a_stream(self, spark: SparkSession, secured: SecuredBroker, user: Cluster, tmp_path: Path) -> None:
        orders.check(secured.broker.bootstrap, orders_dlq.main(user, tmp_path))

    def test_batches(self, spark: SparkSession, user: Cluster, tmp_path: Path) -> None:
        found = backfill_by_timestamp.main(user, tmp_path)
        pd.testing.assert_frame_equal(found, backfill.expected(), check_dtype=False)

    def test_a_python_producer(
        self, spark: SparkSession, secured: SecuredBroker, user: Cluster, tmp_path: Path
    ) -> None:
        retry.check(retry.Outcome(secured.broker.bootstrap, retry_with_backoff.main(user, tmp_path)))


class TestArchive:
    """The archive with the rights that docs/archive.md names, and no others."""

    def test_there_and_back(self, spark: SparkSession, secured: SecuredBroker, tmp_path: Path) -> None:
        pair, where = Pair(secured), str(tmp_path / "archive")
        keeper = secured.user("keeper", (TOPIC, pair.source, READ))
        spans = job.copy(lambda: spark, keeper, where, [pair.source])
        assert sum(span.records for _, span in spans) == RECORDS
        _, verdict = job.verify(lambda: spark, keeper, where)
        assert (verdict.faults, sum(verdict.compared.values())) == ([], RECORDS)

        player = secured.user("player", (TOPIC, pair.sink, READ), (TOPIC, pair.sink, WRITE))
        replay = partial(job.replay, lambda: spark, player, where, ReplayScope(pair.source), pair.sink)
        with pytest.raises(CommandFailed, match=r"may not use the group kpybroker-replay-.* ACL READ"):
            replay()
        secured.allow("player", (GROUP, "kpybroker-replay-", READ))
        with pytest.raises(CommandFailed, match=r"the transactional id kpybroker-replay-.* ACL WRITE"):
            replay()
        secured.allow("player", (TRANSACTIONAL_ID, "kpybroker-replay-", WRITE))
        assert sum(now for now, _ in replay().values()) == RECORDS
        found, sent = (
            sorted((each.partition(), each.key(), each.value(), each.timestamp()) for each in stored(at, topic))
            for at, topic in ((secured.broker.bootstrap, pair.sink), (secured.broker.bootstrap, pair.source))
        )
        assert found == sent

    @pytest.mark.full  # starts Spark three times
    def test_by_its_commands(self, secured: SecuredBroker, tmp_path: Path) -> None:
        pair, where = Pair(secured), str(tmp_path / "archive")
        secured.user("operator", (TOPIC, pair.source, READ), (TOPIC, pair.sink, READ), (TOPIC, pair.sink, WRITE))
        secured.allow(
            "operator", *((kind, "kpybroker-replay-", may) for kind, may in ((GROUP, READ), (TRANSACTIONAL_ID, WRITE)))
        )
        user = secured.seen_by("operator")
        for command in (
            ["copy", pair.source, "--to", where],
            ["verify", where],
            ["replay", where, pair.source, "--into", pair.sink],
        ):
            told = kpybroker("archive", *command, "--json", cluster=user)
            assert told.returncode == 0, told.stderr
            assert json.loads(told.stdout)
        assert len(stored(secured.broker.bootstrap, pair.sink)) == RECORDS
        refused = kpybroker(
            "archive", "copy", pair.source, "--to", where, cluster=secured.seen_by("reader", sasl_jaas_config=GUESSED)
        )
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "the login of 'reader' with SCRAM-SHA-512 failed" in refused.stderr


def kpybroker(*arguments: str, cluster: Cluster) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kpybroker", *arguments, "--bootstrap", cluster.bootstrap]
    command += ["--command-config", str(cluster.command_config)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
