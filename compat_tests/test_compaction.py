"""Tests that every client finds the newest record of each key in a compacted topic, and that DumpLogSegments
reports no error."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as Reader
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.changing import until
from compat_tests.conftest import EXIT_CODES, Running, start_target
from compat_tests.dumps import READABLE, dump_everything, dump_in_turn
from compat_tests.vocabulary import CODECS
from tests.storage.compacting import KeyedHistory

SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
    "file.delete.delay.ms": "0",
}


@pytest.fixture
def cleaning(target_name: str) -> Iterator[Running]:
    """A broker that constantly looks for logs to clean."""
    broker = start_target(target_name, {"log.cleaner.backoff.ms": "100"})
    yield broker
    if broker.running:
        assert broker.stop() == EXIT_CODES[target_name]
    broker.remove()


class Writer:
    """Writes batches to one partition. Their timestamps are a second apart, so that each batch has its own segment.

    The timestamps are in the future: an end marker, which has the broker's time, must not begin a segment that later
    batches would be appended to.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.now_ms = int(time.time() * 1000) + 600_000
        self.table: dict[bytes, bytes] = {}

    def producer(self, **settings: object) -> Producer:
        return Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 20, "log_level": 2, **settings})

    def send(self, producer: Producer, records: dict[str, str | None], *, counts: bool = True) -> None:
        self.now_ms += 1000
        for key, value in records.items():
            producer.produce(self.topic, key=key, value=value, partition=0, timestamp=self.now_ms)
            if counts and value is None:
                self.table.pop(key.encode(), None)
            elif counts:
                assert value is not None
                self.table[key.encode()] = value.encode()
        assert producer.flush(30) == 0


def read(bootstrap: str, topic: str, *, isolation: str = "read_committed") -> list[tuple[int, bytes, bytes | None]]:
    """Every remaining record: offset, key, value."""
    reader = Reader(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[int, bytes, bytes | None]] = []
    while True:
        message = reader.poll(30)
        assert message is not None, "the end of the partition was not reached"
        if message.error() is not None:
            break
        found.append((message.offset(), message.key(), message.value()))
    reader.close()
    return found


def test_the_newest_record_of_each_key_is_left(cleaning: Running, target_name: str, unique: Callable[[], str]) -> None:
    topic = unique()
    admin = AdminClient({"bootstrap.servers": cleaning.bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(topic, 1, 1, config=SETTINGS)])[topic].result(30)
    writer = Writer(cleaning.bootstrap, topic)
    for turn in range(3):
        for codec in CODECS:
            packed = writer.producer(**{"compression.type": codec})
            writer.send(packed, {f"{codec}{n}": f"{turn}-{n}" * 20 for n in range(8)})
            writer.send(packed, {f"{codec}{turn}": None, f"{codec}7": "again"})
    transactional = writer.producer(**{"transactional.id": topic})
    transactional.init_transactions(30)
    for commits in (True, False, True, False):
        transactional.begin_transaction()
        writer.send(transactional, {"in a transaction": str(commits), "none0": f"of {commits}"}, counts=commits)
        (transactional.commit_transaction if commits else transactional.abort_transaction)(30)
    plain = writer.producer()
    writer.send(plain, {"last": "1"})
    writer.send(plain, {"last": "2"})
    written = read(cleaning.bootstrap, topic)

    def is_clean() -> bool:
        left = read(cleaning.bootstrap, topic)
        assert set(left) <= set(written), "the remaining records are unchanged, at their offsets"
        table: dict[bytes, bytes | None] = {key: value for _, key, value in left}
        assert {key: value for key, value in table.items() if value is not None} == writer.table
        keys = [key for _, key, value in left if key != b"last"]
        return len(keys) == len(set(keys))

    until(is_clean, "it is clean")
    uncommitted = read(cleaning.bootstrap, topic, isolation="read_uncommitted")
    assert b"of False" not in [value for _, _, value in uncommitted], "aborted records are removed for all readers"
    cleaning.stop()
    dump_everything(cleaning.data)
    cleaning.restart()
    assert is_clean()


def test_no_history_leaves_files_that_kafkas_tool_rejects(tmp_path: Path) -> None:
    """The histories are those of tests/storage/test_cleaning.py, which tests that a reader finds the same newest
    values."""
    files: list[Path] = []
    for seed in range(30):
        history = KeyedHistory.of(tmp_path / str(seed), seed)
        for _ in range(120):
            history.step()
        history.clean()
        for log in (history.log, history.full):
            log.close()
            files += (path for path in sorted(Path(log.directory).iterdir()) if path.suffix in READABLE)
    dump_in_turn(files, "--deep-iteration", "--print-data-log")
