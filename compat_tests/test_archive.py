"""Tests of `kpybroker.archive` on a broker: archive and topic together contain the whole history of the topic, whatever
happens between the runs."""

import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from pyspark.sql import SparkSession

from compat_tests.conftest import MakeTopic
from kpybroker.archive import job
from kpybroker.archive.history import name_of
from kpybroker.archive.replaying import ReplayScope
from kpybroker.archive.verifying import Verdict
from kpybroker.client.client import CommandFailed
from oracle.target import Target

PARTITIONS = 3
PATIENCE_S = 60.0
DAY_MS = 86_400_000
FIRST_MS = 1_700_000_000_000

Headers = list[tuple[str, bytes | None]] | None
Record = tuple[int, int, bytes | None, bytes | None, Headers]
"""Partition, timestamp in ms, key, value, headers."""


class Workshop:
    """One topic, its archive, and the records that were sent and committed."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, where: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.topic = topic
        self.where = where
        self.sent: list[Record] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
        self._producer.init_transactions(30)

    def send(self, count: int, *, aborted: bool = False) -> None:
        """Send a transaction with records of three days, with nulls, empty bytes, and headers of every kind."""
        self._producer.begin_transaction()
        first = len(self.sent)
        for number in range(first, first + count):
            partition, ms = number % PARTITIONS, FIRST_MS + number * (3 * DAY_MS // 300)
            key = None if number % 7 == 0 else b"k%d" % number
            value = None if number % 11 == 0 else b"" if number % 13 == 0 else b"v%d" % number
            headers: Headers = [("n", b"%d" % number), ("n", b""), ("none", None)] if number % 3 == 0 else None
            self._producer.produce(self.topic, value, key, partition, timestamp=ms, headers=headers or [])
            if not aborted:
                self.sent.append((partition, ms, key, value, headers))
        assert self._producer.flush(30) == 0
        self._producer.abort_transaction(30) if aborted else self._producer.commit_transaction(30)
        self._await_the_end()

    def _await_the_end(self) -> None:
        """Wait until every partition knows that the transaction has ended: its producer may know it earlier."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        asked = {TopicPartition(self.topic, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            stable, end = (
                [one.result(30).offset for one in admin.list_offsets(asked, isolation_level=level).values()]
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
            if stable == end:
                return
            assert time.monotonic() < deadline, f"{stable} of {end} belong to completed transactions"
            time.sleep(0.02)

    def copy(self, **options: Any) -> None:
        job.copy(lambda: self.spark, self.bootstrap, str(self.where), [self.topic], **options)

    def verify(self) -> Verdict:
        return job.verify(lambda: self.spark, self.bootstrap, str(self.where))[1]

    def replay(self, target: str, wanted: ReplayScope | None = None, name: str = "") -> dict[int, tuple[int, int]]:
        wanted = wanted or ReplayScope(self.topic)
        return job.replay(lambda: self.spark, self.bootstrap, str(self.where), wanted, target, name=name)

    def archived(self) -> list[Record]:
        return [
            (
                row.partition,
                round(row.timestamp.timestamp() * 1000),
                _bytes(row.key),
                _bytes(row.value),
                _pairs(row.headers),
            )
            for row in job.read(self.spark, str(self.where)).orderBy("partition", "offset").collect()
        ]

    def files(self) -> list[Path]:
        return sorted((self.where / "data").rglob("*.parquet"))


def _bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


def _pairs(headers: list[tuple[str, bytearray | None]] | None) -> Headers:
    return headers and [(key, _bytes(value)) for key, value in headers]


def stored(bootstrap: str, topic: str) -> list[Record]:
    """The records that a read_committed consumer finds, in order within each partition."""
    config = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True}
    consumer = Consumer(config | {"isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    left, found = set(range(PARTITIONS)), []
    while left:
        message = consumer.poll(30)
        assert message is not None, f"no more records; {left} not read to the end"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            left.discard(message.partition())
            continue
        kind, ms = message.timestamp()
        assert kind == TIMESTAMP_CREATE_TIME
        found.append((message.partition(), ms, message.key(), message.value(), message.headers()))
    consumer.close()
    return sorted(found, key=lambda record: record[0])


def by_partition(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record[0])


@pytest.fixture
def shop(spark: SparkSession, target: Target, make_topic: MakeTopic, tmp_path: Path) -> Workshop:
    return Workshop(spark, target.bootstrap, make_topic(PARTITIONS), tmp_path / "an archive, 100%")


def test_archive_and_topic_are_the_topics_history(shop: Workshop, admin: AdminClient, make_topic: MakeTopic) -> None:
    """Aborted records are gaps. Records that DeleteRecords deletes remain in the archive, and a replay restores each
    record once."""
    for _ in range(2):
        shop.send(90)
        shop.send(30, aborted=True)
        shop.copy(round_offsets=100)
        before = shop.files()
        shop.copy()
        assert shop.files() == before, "a second run adds nothing"
        assert shop.archived() == by_partition(shop.sent)
    verdict = shop.verify()
    assert (verdict.faults, sum(verdict.compared.values())) == ([], 180)

    deleted = [TopicPartition(shop.topic, partition, 33) for partition in range(PARTITIONS)]
    for future in admin.delete_records(deleted).values():
        future.result(30)
    shop.send(30)  # not archived yet
    verdict = shop.verify()
    assert verdict.faults == []
    assert 0 < sum(verdict.compared.values()) < 180

    back = make_topic(PARTITIONS)
    archived = by_partition(shop.sent[:180])
    counts = {partition: sum(record[0] == partition for record in archived) for partition in range(PARTITIONS)}
    assert shop.replay(back) == {partition: (count, count) for partition, count in counts.items()}
    assert shop.replay(back) == {partition: (0, count) for partition, count in counts.items()}
    assert stored(shop.bootstrap, back) == archived


def test_a_range_is_replayed(shop: Workshop, make_topic: MakeTopic) -> None:
    shop.send(90)
    shop.copy()
    back, again = make_topic(PARTITIONS), make_topic(PARTITIONS)
    start, end = shop.sent[10][1], shop.sent[70][1]
    shop.replay(back, ReplayScope(shop.topic, start_ms=start, end_ms=end))
    assert stored(shop.bootstrap, back) == by_partition(shop.sent[10:70])
    only = ReplayScope(shop.topic, start=5, end=20, partitions=(2,))
    for name in "", "once more":
        shop.replay(again, only, name)
    wanted = [record for record in shop.sent if record[0] == 2][5:20]
    assert stored(shop.bootstrap, again) == wanted + wanted


def test_every_kind_of_damage_is_detected(shop: Workshop, tmp_path: Path) -> None:
    shop.send(90)
    shop.copy(round_offsets=60)
    assert shop.verify().faults == []
    whole = tmp_path / "whole"
    shutil.copytree(shop.where, whole)
    chance = random.Random(7)
    path = chance.choice(shop.files())

    def deleted() -> None:
        path.unlink()

    def copied() -> None:
        shutil.copy(path, path.with_name("copy.parquet"))

    def changed() -> None:
        data = bytearray(path.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)

    def replaced() -> None:
        """Replace a file with another file of the same archive."""
        other = chance.choice([file for file in shop.files() if file != path])
        shutil.copy(other, path)

    def swapped() -> None:
        """Change the order of the lines in a file, which does not change the sum of their hashes."""
        path.write_bytes(b"\n".join(reversed(path.read_bytes().split(b"\n"))))

    damages: list[tuple[Callable[[], None], str]] = [
        (deleted, "is missing"),
        (copied, "a copy of another file"),
        (changed, "its bytes differ from those written"),
        (replaced, "bytes"),
        (swapped, "cannot be read"),
    ]
    assert list(shop.where.rglob("*.crc")), (
        "no .crc files: Hadoop's own checksum error must not end the job before verify reports the damage"
    )
    for damage, told in damages:
        damage()
        faults = shop.verify().faults
        assert len(faults) == 1, (damage.__name__, faults)
        assert told in faults[0]
        assert path.parent.name in faults[0]
        shutil.rmtree(shop.where)
        shutil.copytree(whole, shop.where)
    assert shop.verify().faults == []


def test_a_gap_is_reported(shop: Workshop, admin: AdminClient) -> None:
    """If records are deleted before they are archived, verify reports them, and the next run reports them and
    continues."""
    shop.send(30)
    shop.copy()
    shop.send(30)
    ends = {0: 15, 1: 0, 2: 0}
    for future in admin.delete_records([TopicPartition(shop.topic, 0, ends[0])]).values():
        future.result(30)
    assert shop.verify().faults == [f"{shop.topic}-0: offsets 11 to 14 are in neither archive nor topic"]
    shop.copy()
    verdict = shop.verify()
    assert verdict.faults == []
    assert any("offsets 11 to 14 were deleted from the topic" in remark for remark in verdict.remarks)


def test_records_that_came_and_went_between_two_runs_are_reported(shop: Workshop, admin: AdminClient) -> None:
    """This includes partitions that had no records at first."""
    shop.copy()
    shop.send(30)
    for future in admin.delete_records([TopicPartition(shop.topic, 0, 5)]).values():
        future.result(30)
    shop.copy()
    verdict = shop.verify()
    assert verdict.faults == []
    told = [remark for remark in verdict.remarks if "were deleted" in remark]
    assert [remark.partition(" were")[0] for remark in told] == [f"{shop.topic}-0: offsets 0 to 4"]


def test_a_topic_recreated_during_a_run_is_another_one(shop: Workshop, admin: AdminClient) -> None:
    shop.send(30)

    def make_again(done: int, _total: int) -> None:
        if done == 0:
            return
        admin.delete_topics([shop.topic], operation_timeout=30)[shop.topic].result(30)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                admin.create_topics([NewTopic(shop.topic, PARTITIONS)])[shop.topic].result(30)
                break
            except KafkaException as refused:  # Apache Kafka responds to a deletion before it is complete
                if refused.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                    raise
        producer = Producer({"bootstrap.servers": shop.bootstrap, "log_level": 0})
        for number in range(60):
            producer.produce(shop.topic, b"another topic's", partition=number % PARTITIONS)
        assert producer.flush(30) == 0

    with pytest.raises(CommandFailed, match="was deleted and recreated during the copy"):
        shop.copy(round_offsets=9, advance=make_again)
    archived = shop.archived()
    assert len(archived) == 9
    assert set(map(repr, archived)) <= set(map(repr, shop.sent))
    with pytest.raises(CommandFailed, match="has another topic named"):
        shop.copy()


def test_files_of_killed_runs_are_ignored(shop: Workshop) -> None:
    """Files without a manifest are not read; clean removes them, and nothing else."""
    shop.send(30)
    shop.copy()
    kept = shop.files()
    left = shop.where / "data" / "run=00000002-0123456789ab"
    shutil.copytree(kept[0].parents[3], left)
    assert shop.archived() == by_partition(shop.sent)
    assert shop.verify().faults == []
    assert job.clean(lambda: shop.spark, str(shop.where)) == len(kept)
    assert shop.files() == kept
    mine = shop.where / "data" / "raw" / "customers.csv"
    mine.parent.mkdir()
    mine.touch()
    for refused in shop.copy, partial(job.clean, lambda: shop.spark, str(shop.where)):
        with pytest.raises(CommandFailed, match="data/raw does not belong to an archive"):
            refused()
    shutil.rmtree(mine.parent)
    shop.send(30)
    shop.copy()
    assert shop.archived() == by_partition(shop.sent)
    assert shop.verify() == Verdict(compared={(shop.topic, partition): 20 for partition in range(PARTITIONS)})


def test_what_cannot_be_used_is_refused_and_left_alone(
    shop: Workshop, admin: AdminClient, make_topic: MakeTopic
) -> None:
    with pytest.raises(CommandFailed, match="there is no topic"):
        job.copy(lambda: shop.spark, shop.bootstrap, str(shop.where), ["absent"])
    assert not shop.where.exists()
    shop.send(30)
    shop.copy()
    with pytest.raises(CommandFailed, match="does not have other; it has"):
        shop.replay(shop.topic, ReplayScope("other"))
    with pytest.raises(CommandFailed, match="has no such records"):
        shop.replay(shop.topic, ReplayScope(shop.topic, start=1000))
    with pytest.raises(CommandFailed, match=r"has 1 partitions, but the records need 3.*--partitions 3"):
        shop.replay(make_topic(1))

    before = sorted(shop.where.rglob("*"))
    first = shop.where / name_of(1)
    content = first.read_bytes()
    first.write_bytes(content[: len(content) // 2])
    with pytest.raises(CommandFailed, match="incomplete"):
        shop.copy()
    assert (sorted(shop.where.rglob("*")), len(first.read_bytes())) == (before, len(content) // 2)
    first.write_bytes(content)
