"""The cost of the pytest fixtures: `python -m bench.fixture` prints the rows of docs/benchmarks.md in Markdown.

Each value comes from a pytest session of its own in an empty directory. A test of a client writes one record to a topic
that does not exist yet, and reads it back with its own group.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.report import number
from bench.target import Target
from kpybroker.testing import Cluster

TESTS = 30
MANY = 500
MOCK_TESTS = 5
"""A group in a mock cluster waits three seconds for its members."""
RESET_TOPICS = 100
TEST_FILE = """
import json, time, pytest
from bench import fixture

@pytest.mark.parametrize("number", range({tests}))
def test_of_it(number{argument}):
    begun = time.time()
    {body}
    with open("said", "a") as said:
        said.write(json.dumps([begun, time.time(), {memory}]) + "\\n")
"""


def confluent(bootstrap: str, topic: str) -> None:
    """Write a record and read it back in a consumer group, with confluent-kafka."""
    from confluent_kafka import Consumer, Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"1")
    assert producer.flush(10) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(10)
    assert message is not None
    assert message.value() == b"1"
    consumer.close()


def kafka_python(bootstrap: str, topic: str) -> None:
    """The same with kafka-python."""
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap)
    producer.send(topic, b"1").get(10)
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest")
    assert next(iter(consumer)).value == b"1"
    consumer.close()
    producer.close()


def aiokafka(bootstrap: str, topic: str) -> None:
    """The same with aiokafka."""
    import asyncio

    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    async def there_and_back() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            await producer.send_and_wait(topic, b"1")
        group = {"group_id": topic, "auto_offset_reset": "earliest"}
        async with AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, **group) as consumer:
            assert (await consumer.getone()).value == b"1"

    asyncio.run(there_and_back())


def librdkafka_mock() -> None:
    """The same as `confluent`, with the mock cluster in the process that librdkafka offers instead of a broker."""
    from confluent_kafka import Producer

    holder = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = holder.list_topics(timeout=10).brokers.values()
    confluent(f"{broker.host}:{broker.port}", "orders")


def without_client(cluster: Cluster) -> None:
    """Write a record and read it back with the test kit alone."""
    topic = cluster.topic("orders")
    cluster.send(topic, "1")
    assert [record.value for record in cluster.records(topic)] == [b"1"]


def reset(cluster: Cluster) -> None:
    """Create topics, and print the milliseconds that it takes to delete them."""
    for _ in range(RESET_TOPICS):
        cluster.topic("orders", partitions=1)
    begun = time.perf_counter()
    cluster.reset()
    Path("reset").write_text(str((time.perf_counter() - begun) * 1000))


Client = Callable[[str, str], None]
CLIENTS: tuple[Client, ...] = (confluent, kafka_python, aiokafka)


def memory_bytes(cluster: Cluster) -> int:
    """The memory (RSS) of all brokers."""
    return sum(Target("fixture", "", cluster.pid_of(node)).resident_bytes() for node in cluster.nodes)


class Session(NamedTuple):
    """What one pytest session measured: for each test, the seconds from the start of pytest to its start and end, and
    the broker's memory after it; the milliseconds of a `reset`; and the seconds of the whole session."""

    tests: list[list[float]]
    reset_ms: float
    whole_s: float

    @property
    def first_s(self) -> float:
        """Seconds from the start of pytest to the end of the first test."""
        return self.tests[0][1]

    @property
    def further_ms(self) -> float:
        """The time that each test but the first takes, with its fixtures."""
        return (self.tests[-1][1] - self.tests[1][0]) / (len(self.tests) - 1) * 1000


def session(body: str, fixture: str = "kpybroker", tests: int = TESTS, options: Sequence[str] = ()) -> Session:
    """Run a session of equal tests that execute `body`."""
    has_process = bool(fixture) and not options
    text = TEST_FILE.format(
        tests=tests,
        body=body,
        argument=f", {fixture}" if fixture else "",
        memory=f"fixture.memory_bytes({fixture})" if has_process else 0,
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_it.py").write_text(text)
        started = time.time()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, *options]
        subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        whole_s = time.time() - started
        lines = sorted(json.loads(line) for line in (Path(folder) / "said").read_text().splitlines())
        reset_file = Path(folder) / "reset"
        reset_ms = float(reset_file.read_text()) if reset_file.exists() else 0.0
    assert len(lines) == tests
    return Session([[begun - started, ended - started, memory] for begun, ended, memory in lines], reset_ms, whole_s)


Row = tuple[str, str, Callable[[Session], float]]


class Load(NamedTuple):
    """A kind of session, and the rows that one session gives: label, unit, value."""

    run: Callable[[], Session]
    rows: Sequence[Row]


def _first(load: str) -> Row:
    return f"{load}: {FIRST}", "s", lambda one: one.first_s


def _of_client(client: Client) -> Load:
    name = {"confluent": "confluent-kafka", "kafka_python": "kafka-python"}.get(client.__name__, client.__name__)
    return Load(
        partial(session, f"fixture.{client.__name__}(kpybroker.bootstrap, kpybroker.topic('orders'))"),
        [_first(name), OWN_GROUP, ("… memory (RSS) of the broker after these tests", "MB", _memory_mb)],
    )


def _memory_mb(one: Session) -> float:
    return one.tests[-1][2] / 1e6


def _further_ms(one: Session) -> float:
    return one.further_ms


FIRST = "start of pytest to the first record read"
IN_THREAD = ("-o", "kpybroker_in_thread=true")
CONFLUENT = "fixture.confluent({0}.bootstrap, {0}.topic('orders'))"
ALONE = "fixture.without_client({0})"
OWN_GROUP: Row = ("… each further test, in a group of its own", "ms", _further_ms)
FRESH: Row = ("… each further test, in a new broker", "ms", _further_ms)
LOADS = (
    Load(
        partial(session, "pass", "", MANY),
        [
            ("no broker: start of pytest to the end of the first test", "s", lambda one: one.first_s),
            ("… each further test, which does nothing", "ms", _further_ms),
        ],
    ),
    Load(
        partial(session, "pass", "kpybroker", MANY),
        [("`kpybroker` in tests that do nothing else: each further test", "ms", _further_ms)],
    ),
    Load(partial(session, ALONE.format("kpybroker")), [_first("`kpybroker`, no client library")]),
    *map(_of_client, CLIENTS),
    Load(
        partial(session, ALONE.format("kpybroker"), options=IN_THREAD),
        [_first("`kpybroker` in a thread, no client library")],
    ),
    Load(
        partial(session, CONFLUENT.format("kpybroker"), options=IN_THREAD),
        [_first("`kpybroker` in a thread, confluent-kafka"), OWN_GROUP],
    ),
    Load(
        partial(session, CONFLUENT.format("kpybroker_cluster"), "kpybroker_cluster", 2),
        [
            _first("three brokers, confluent-kafka"),
            ("… memory (RSS) of the three brokers", "MB", _memory_mb),
        ],
    ),
    Load(
        partial(session, ALONE.format("kpybroker_fresh"), "kpybroker_fresh"),
        [_first("`kpybroker_fresh`, no client library"), FRESH],
    ),
    Load(
        partial(session, ALONE.format("kpybroker_fresh"), "kpybroker_fresh", options=IN_THREAD),
        [_first("`kpybroker_fresh` in a thread, no client library"), FRESH],
    ),
    Load(
        partial(session, "fixture.reset(kpybroker)", tests=2),
        [(f"`reset()` of a broker with {RESET_TOPICS} topics", "ms", lambda one: one.reset_ms)],
    ),
    Load(
        partial(session, ALONE.format("kpybroker"), tests=MANY, options=("-n", "2")),
        [(f"{MANY} tests with a topic each, no client library, `pytest -n 2`: all", "s", lambda one: one.whole_s)],
    ),
    Load(
        partial(session, "fixture.librdkafka_mock()", "", MOCK_TESTS),
        [
            _first("librdkafka's mock cluster in place of a broker, confluent-kafka"),
            ("… each further test, in a mock cluster of its own", "ms", _further_ms),
        ],
    ),
)


def rows() -> list[tuple[str, str]]:
    """Labels and units of the rows, in the order of the table."""
    return [(label, unit) for load in LOADS for label, unit, _ in load.rows]


def main() -> None:
    """Print the table: median [smallest-largest]."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    print("| measurement | unit | median |\n|---|---|---|")
    for load in LOADS:
        sessions = [load.run() for _ in range(runs)]
        for label, unit, value in load.rows:
            values = [value(one) for one in sessions]
            spread = f"[{number(min(values))}-{number(max(values))}]"
            print(f"| {label} | {unit} | {number(statistics.median(values))} {spread} |", flush=True)


if __name__ == "__main__":
    main()
