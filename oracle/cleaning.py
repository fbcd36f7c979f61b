"""Records the contents of a log after Apache Kafka's cleaner has cleaned it: `python -m oracle.cleaning` writes to
tests/storage.

While the cleaner is off, a script writes to one partition: various keys, tombstones, codecs, producers and
transactions. The partition's files are recorded, the broker is restarted with the cleaner on, and the files are
recorded again. This is done twice; the second cleaning is after every delete horizon. Files are in hexadecimal, by
name, without preallocated ends.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from oracle.kafka import Kafka

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "storage" / "cleaned-4.3.1.json"
TOPIC = "compacted"
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "2000",
    "file.delete.delay.ms": "0",
    "index.interval.bytes": "1",
}
KEPT = (".log", ".txnindex", ".snapshot")
CHECKPOINT = "cleaner-offset-checkpoint"
TIMEOUT_S = 60.0


class Script:
    """Sends one batch after another, each acknowledged before the next. Their timestamps are a second apart."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._now_ms = int(time.time() * 1000) - 10_000_000

    def producer(self, **settings: object) -> Producer:
        return Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 50, "log_level": 0, **settings})

    def send(self, producer: Producer, *records: tuple[str, str | None]) -> None:
        """Send one batch, which has its own segment unless it follows a marker."""
        self._now_ms += 1000
        for key, value in records:
            producer.produce(TOPIC, key=key, value=value, partition=0, timestamp=self._now_ms)
        if producer.flush(TIMEOUT_S):
            raise RuntimeError("not acknowledged")

    def transaction(self, producer: Producer, *batches: list[tuple[str, str | None]], commits: bool) -> None:
        producer.begin_transaction()
        for records in batches:
            self.send(producer, *records)
        (producer.commit_transaction if commits else producer.abort_transaction)(TIMEOUT_S)

    def first_part(self) -> None:
        plain, idempotent = self.producer(), self.producer(**{"enable.idempotence": True})
        committing, aborting = (self.producer(**{"transactional.id": name}) for name in ("commits", "aborts"))
        committing.init_transactions(TIMEOUT_S)
        aborting.init_transactions(TIMEOUT_S)
        self.send(idempotent, ("a", "1"), ("b", "1"))
        self.send(plain, ("c", "1"))
        self.send(plain, ("a", "2"), ("b", None), ("x", "1"))
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            packed = self.producer(**{"compression.type": codec})
            self.send(packed, *[(f"{codec}{number}", "v" * 100) for number in range(6)])
            self.send(packed, (f"{codec}1", "2" * 100), (f"{codec}3", None), (f"{codec}4", "2" * 100))
        self.transaction(committing, [("i", "1"), ("a", "3")], commits=True)
        self.transaction(aborting, [("a", "bad"), ("j", "bad")], [("k", "bad")], commits=False)
        self.transaction(committing, [("j", "1")], [("i", None), ("l", "1")], commits=True)
        self.transaction(aborting, [("x", "bad")], commits=False)
        self.send(idempotent, ("n", "1"), ("c", "2"))
        self.send(plain, ("n", "2"))
        self.send(plain, ("n", "3"), ("c", "3"))
        self.send(plain, ("active", "1"))

    def second_part(self) -> None:
        plain, committing = self.producer(), self.producer(**{"transactional.id": "commits"})
        committing.init_transactions(TIMEOUT_S)
        self.send(plain, ("zstd0", None), ("new", "1"))
        self.transaction(committing, [("l", "2"), ("j", None)], commits=True)
        self.transaction(committing, [("new", "bad")], commits=False)
        self.send(plain, ("active", "2"))
        self.send(plain, ("active", "3"))


@contextmanager
def running(directory: Path, *, cleans: bool) -> Iterator[Kafka]:
    settings = {"log.cleaner.enable": str(cleans).lower(), "log.cleaner.backoff.ms": "100"}
    node = Kafka(directory, settings)
    node.start()
    try:
        yield node
    finally:
        node.stop()


def files_of(data: Path) -> dict[str, str]:
    found = sorted((data / f"{TOPIC}-0").iterdir())
    return {file.name: file.read_bytes().hex() for file in found if file.suffix in KEPT}


def active_base(data: Path) -> int:
    return max(int(file.stem) for file in (data / f"{TOPIC}-0").glob("*.log"))


def await_cleaned(data: Path, offset: int) -> None:
    """Wait until the checkpoint has the offset. The checkpoint is written after the last segment is replaced."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if (data / CHECKPOINT).exists() and f"{TOPIC} 0 {offset}\n" in (data / CHECKPOINT).read_text():
            return
        time.sleep(0.1)
    raise RuntimeError(f"not cleaned up to {offset}: {(data / CHECKPOINT).read_text()}")


def play(directory: Path) -> list[dict[str, dict[str, str]]]:
    rounds = []
    for number in range(2):
        with running(directory, cleans=False) as node:
            script = Script(node.bootstrap)
            if number == 0:
                admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
                admin.create_topics([NewTopic(TOPIC, 1, 1, config=SETTINGS)])[TOPIC].result(TIMEOUT_S)
                script.first_part()
            else:
                script.second_part()
        before, base = files_of(node.data), active_base(node.data)
        time.sleep(3)
        with running(directory, cleans=True) as node:
            await_cleaned(node.data, base)
        rounds.append({"before": before, "after": files_of(node.data)})
    return rounds


def main() -> None:
    with TemporaryDirectory() as directory:
        rounds = play(Path(directory))
    GOLDEN.write_text(json.dumps({"settings": SETTINGS, "rounds": rounds}, indent=1) + "\n")
    print(f"{GOLDEN}: {[len(one['after']) for one in rounds]} files left", file=sys.stderr)


if __name__ == "__main__":
    main()
