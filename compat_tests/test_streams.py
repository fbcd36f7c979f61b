"""Tests of Kafka Streams: words are counted; with exactly_once_v2 they are counted exactly, whichever process is
killed."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.client_confluent import Confluent
from compat_tests.conftest import MakeTopic, Running, start_target
from compat_tests.pipelines import Program
from compat_tests.streams_rounds import PROTOCOLS, SETTINGS, play
from compat_tests.vocabulary import Message, closing, send_all

TEXT = ["der Wind weht", "weht der Wind", "wo der Fluss in den Fluss fließt", "Wind"]
REPEATED = 200
ROUNDS = 4
SEED = 3


@pytest.fixture
def alone(target_name: str) -> Iterator[Running]:
    broker = start_target(target_name, SETTINGS)
    yield broker
    broker.kill9()
    broker.remove()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_words_are_counted(
    guarantee: str, broker: Running, make_topic: MakeTopic, unique: Callable[[], str], tmp_path: Path
) -> None:
    lines, counts, application = make_topic(2), make_topic(2), unique()
    producer = Confluent().producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, lines, [Message(line.encode()) for line in TEXT * REPEATED])
    wanted = Counter(word.encode() for line in TEXT * REPEATED for word in line.split())
    found: dict[bytes | None, int] = {}
    consumer = Confluent().consumer(broker.bootstrap, isolation="read_committed")
    arguments = [broker.bootstrap, application, "one", str(tmp_path), guarantee, "words", lines, counts]
    with closing(consumer), Program("Counting", *arguments, log=tmp_path / "log") as counting:
        consumer.assign({(counts, partition): "earliest" for partition in range(2)})

        def counted() -> bool:
            for one in consumer.poll(0.2):
                found[one.key] = int(one.value or b"0")
            return found == wanted

        counting.until(counted, f"counted; {found}")
        counting.stop()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_counts_are_exact_whichever_process_is_killed(protocol: str, alone: Running, tmp_path: Path) -> None:
    assert play(alone, tmp_path, ROUNDS, SEED, protocol) > 1000
