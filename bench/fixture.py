"""The cost of the pytest fixtures: `python -m bench.fixture` prints the rows of docs/benchmarks.md in Markdown.

Each run is a separate pytest session in an empty directory. A test writes one record to a topic that does not exist
yet, and reads it back with its own group.
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
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.report import number
from bench.target import Target
from kpybroker.testing import Cluster

TESTS = 30
TEST_FILE = """
import json, time, pytest
from bench import fixture

@pytest.mark.parametrize("number", range({tests}))
def test_of_it(number, {fixture}):
    begun = time.time()
    fixture.{client}({fixture}.bootstrap, {fixture}.topic("orders"))
    with open("said", "a") as said:
        said.write(json.dumps([begun, time.time(), fixture.memory_bytes({fixture})]) + "\\n")
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


Client = Callable[[str, str], None]
CLIENTS: tuple[Client, ...] = (confluent, kafka_python, aiokafka)


def memory_bytes(cluster: Cluster) -> int:
    """The memory (RSS) of all brokers."""
    return sum(Target("fixture", "", cluster.pid_of(node)).resident_bytes() for node in cluster.nodes)


def session(client: str, fixture: str = "kpybroker", tests: int = TESTS) -> list[list[float]]:
    """For each test: seconds from the start of pytest to its start and end, and the broker's memory after it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_it.py").write_text(TEST_FILE.format(tests=tests, client=client, fixture=fixture))
        started = time.time()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder]
        subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        lines = [json.loads(line) for line in (Path(folder) / "said").read_text().splitlines()]
    return [[begun - started, ended - started, memory] for begun, ended, memory in lines]


def rows() -> list[tuple[str, str]]:
    """Labels and units of the rows, in the order of the table."""
    of_clients = [row for client in CLIENTS for row in _rows_of(name_of(client))]
    return [*of_clients, *((what, unit) for what, unit in _OF_THREE)]


def name_of(client: Client) -> str:
    """The name of the client's package."""
    return {"confluent": "confluent-kafka", "kafka_python": "kafka-python"}.get(client.__name__, client.__name__)


def _rows_of(name: str) -> list[tuple[str, str]]:
    return [
        (f"{name}: start of pytest to the first record read", "s"),
        ("… each further test, in a group of its own", "ms"),
        ("… memory (RSS) of the broker after these tests", "MB"),
    ]


_OF_THREE = (
    ("three brokers: start of pytest to the first record read, confluent-kafka", "s"),
    ("… memory (RSS) of the three brokers and of the process that started them", "MB"),
)


def _measured(runs: int) -> Iterator[list[float]]:
    """The values of each row, one per run."""
    for client in CLIENTS:
        sessions = [session(client.__name__) for _ in range(runs)]
        yield [tests[0][1] for tests in sessions]
        yield [(tests[-1][1] - tests[1][0]) / (len(tests) - 1) * 1000 for tests in sessions]
        yield [tests[-1][2] / 1e6 for tests in sessions]
    sessions = [session("confluent", "kpybroker_cluster", 2) for _ in range(runs)]
    yield [tests[0][1] for tests in sessions]
    yield [tests[-1][2] / 1e6 for tests in sessions]


def main() -> None:
    """Print the table: median [smallest-largest]."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    print("| measurement | unit | kpybroker |\n|---|---|---|")
    for (what, unit), values in zip(rows(), _measured(parser.parse_args().runs), strict=True):
        spread = f"[{number(min(values))}-{number(max(values))}]"
        print(f"| {what} | {unit} | {number(statistics.median(values))} {spread} |", flush=True)


if __name__ == "__main__":
    main()
