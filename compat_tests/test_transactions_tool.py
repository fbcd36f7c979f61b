"""Tests that kafka-transactions lists and ends transactions: open transactions, and hanging transactions that no
coordinator knows."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from compat_tests.conftest import Running, Settled, start_target
from compat_tests.transactors import JAVA, Transactors, ends
from compat_tests.vocabulary import Refused
from kpybroker.errors import ErrorCode
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import produce
from oracle.asking import ask

AN_HOUR_MS = 3_600_000
TOOL = "kafka-transactions"


@pytest.fixture(scope="module")
def broker(target_name: str) -> Iterator[Running]:
    """A broker that accepts transactional records that its coordinator does not know, as brokers before 3.6 did."""
    broker = start_target(target_name, {"transaction.partition.verification.enable": "false"})
    yield broker
    broker.kill9()
    broker.remove()


@pytest.fixture
def transactors(broker: Running) -> Iterator[Transactors]:
    transactors = Transactors(lambda: broker.bootstrap)
    yield transactors
    transactors.close()


def make_topic(broker: Running, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, config={"retention.ms": "-1"})])[name].result(30)
    return name


def rows(broker: Running, *command: str) -> list[dict[str, str]]:
    """The table that the tool prints, as a dictionary for each line."""
    lines = [line.split("\t") for line in broker.tool(TOOL, *command).ok().splitlines()]
    names = [name.strip() for name in lines[0]]
    return [dict(zip(names, (cell.strip() for cell in line), strict=True)) for line in lines[1:]]


def stable_end(broker: Running, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    place = TopicPartition(topic, 0)
    asked = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
    return int(asked[place].result(30).offset)


def test_open_transactions_are_listed_and_described(
    broker: Running, transactors: Transactors, unique: Callable[[], str], settled: Settled
) -> None:
    topic, name, other = make_topic(broker, unique()), unique(), unique()
    one, two = transactors("confluent-kafka"), transactors(JAVA)
    for transactor, transactional_id in ((one, name), (two, other)):
        transactor.do("producer", transactional_id, 60_000)
        transactor.do("begin")
        transactor.do("send", topic, 0, "open")
        transactor.do("flush")
    listed = {row["TransactionalId"]: row for row in rows(broker, "list")}
    assert listed[name]["TransactionState"] == listed[other]["TransactionState"] == "Ongoing"
    assert listed[name]["Coordinator"] == "1"
    assert {row["TransactionalId"] for row in rows(broker, "list", "--transactional-id-pattern", f"{name}.*")} == {name}
    assert rows(broker, "list", "--duration-filter", str(AN_HOUR_MS)) == []
    [described] = rows(broker, "describe", "--transactional-id", name)
    assert described["TransactionState"] == "Ongoing"
    assert described["TransactionTimeoutMs"] == "60000"
    assert described["TopicPartitions"] == f"{topic}-0"
    assert described["ProducerId"] == listed[name]["ProducerId"]
    producers = {
        row["ProducerId"]: row for row in rows(broker, "describe-producers", "--topic", topic, "--partition", "0")
    }
    assert producers.keys() == {listed[name]["ProducerId"], listed[other]["ProducerId"]}
    assert producers[listed[name]["ProducerId"]]["CurrentTransactionStartOffset"] == "0"
    assert producers[listed[other]["ProducerId"]]["CurrentTransactionStartOffset"] == "1"
    one.do("commit")
    two.do("abort")

    def state(transactional_id: str) -> str:
        return rows(broker, "describe", "--transactional-id", transactional_id)[0]["TransactionState"]

    settled(lambda: (state(name), state(other)) == ("CompleteCommit", "CompleteAbort"))
    producers = {
        row["ProducerId"]: row for row in rows(broker, "describe-producers", "--topic", topic, "--partition", "0")
    }
    assert {row["CurrentTransactionStartOffset"] for row in producers.values()} == {"None"}


def test_an_unknown_id_is_reported(broker: Running) -> None:
    ran = broker.tool(TOOL, "describe", "--transactional-id", "nobody")
    assert ran.code == 1
    assert "nobody" in ran.out + ran.err


def test_an_open_transaction_is_aborted_by_force(
    broker: Running, transactors: Transactors, unique: Callable[[], str], settled: Settled
) -> None:
    topic, name = make_topic(broker, unique()), unique()
    left = transactors(JAVA)
    left.do("producer", name, 60_000)
    left.do("begin")
    left.do("send", topic, 0, "open")
    left.do("flush")
    broker.tool(TOOL, "forceTerminateTransaction", "--transactionalId", name).ok()
    settled(lambda: stable_end(broker, topic) == 2)
    with pytest.raises(Refused, match=r"(?i)fenced|producer_?epoch"):
        left.do("commit")
    last = transactors(JAVA)
    last.do("producer", name, 60_000)
    last.transaction(topic, *ends())
    assert last.read(topic) == {0: ["END"]}


def hang(broker: Running, topic: str, producer_id: int) -> None:
    """Write an hour-old transactional record of a producer that no coordinator knows."""
    an_hour_ago_ms = int(time.time() * 1000) - AN_HOUR_MS
    records = encode_batch(
        [(None, b"hanging")],
        timestamp_ms=an_hour_ago_ms,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    data = produce.PartitionProduceData(index=0, records=bytes(records))
    topics = [produce.TopicProduceData(name=topic, partition_data=[data])]
    request = produce.Request(transactional_id="gone", acks=-1, timeout_ms=10_000, topic_data=topics)
    told: Any = ask(("127.0.0.1", broker.port), "Produce", 11, request, produce.Response, timeout_s=20)
    [partition] = told.responses[0].partition_responses
    assert ErrorCode(partition.error_code) is ErrorCode.NONE


def test_a_hanging_transaction_is_found_and_aborted(
    broker: Running, transactors: Transactors, unique: Callable[[], str]
) -> None:
    topic = make_topic(broker, unique())
    one = transactors("confluent-kafka")
    one.do("producer", unique(), 60_000)
    one.transaction(topic, (0, "before"))
    hang(broker, topic, producer_id=424_242)
    one.transaction(topic, *ends())
    assert stable_end(broker, topic) == 2
    of_topic = ["--topic", topic, "--partition", "0"]
    for command in (["find-hanging", "--broker-id", "1"], ["find-hanging", "--topic", topic]):
        [found] = [row for row in rows(broker, *command) if row["Topic"] == topic]
        assert (found["ProducerId"], found["StartOffset"], found["Partition"]) == ("424242", "2", "0")
        assert int(found["Duration(min)"]) in (60, 61)
    broker.tool(TOOL, "abort", *of_topic, "--start-offset", "2").ok()
    assert rows(broker, "find-hanging", "--topic", topic) == []
    assert one.read(topic) == {0: ["before", "END"]}
    again = broker.tool(TOOL, "abort", *of_topic, "--start-offset", "2")
    assert again.code == 1


def test_transaction_version_1(broker: Running, transactors: Transactors, unique: Callable[[], str]) -> None:
    """With transaction.version 1 the Java client adds its partitions itself, and its epoch does not change. Then the
    test returns to version 2."""
    topic, group, name = make_topic(broker, unique()), unique(), unique()

    def epoch() -> int:
        return int(rows(broker, "describe", "--transactional-id", name)[0]["ProducerEpoch"])

    def finalized() -> str:
        lines = broker.tool("kafka-features", "describe").ok().splitlines()
        [line] = [line for line in lines if "Feature: transaction.version" in line]
        return line

    broker.tool("kafka-features", "downgrade", "--feature", "transaction.version=1").ok()
    assert "FinalizedVersionLevel: 1" in finalized()
    old = transactors(JAVA)
    old.do("producer", name, 60_000)
    began = epoch()
    old.transaction(topic, (0, "a"))
    old.transaction(topic, (0, "lost"), end="abort")
    old.do("begin")
    old.do("send", topic, 0, "b")
    old.do("offsets", group, topic, 0, 5)
    old.do("commit")
    assert old.do("committed", group, topic, 0) == "5"
    assert epoch() == began
    broker.tool("kafka-features", "upgrade", "--feature", "transaction.version=2").ok()
    assert "FinalizedVersionLevel: 2" in finalized()
    old.transaction(topic, (0, "c"))
    new = transactors(JAVA)
    new.do("producer", name, 60_000)
    began = epoch()
    new.transaction(topic, (0, "d"))
    new.transaction(topic, *ends())
    assert epoch() == began + 2
    assert new.read(topic) == {0: ["a", "b", "c", "d", "END"]}
