"""A Kafka Streams application in a streams group (KIP-1071) that counts the words of a topic's lines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from compat_tests.client_confluent import Confluent
from compat_tests.pipelines import Program, properties
from compat_tests.vocabulary import Message, closing, send_all

TEXT = ["der Wind weht", "weht der Wind", "wo der Fluss in den Fluss fließt", "Wind"]
REPEATED = 200


def counting(bootstrap: str, application: str, source: str, sink: str, folder: Path) -> Program:
    """An instance of an application that counts the words of a topic's lines."""
    more = properties(folder / "more", {"group.protocol": "streams"})
    arguments = [bootstrap, application, "one", str(folder), "at_least_once", "words", source, sink, more]
    return Program("Counting", *arguments, log=folder / "log")


def send_lines(bootstrap: str, topic: str) -> Counter[bytes]:
    """Returns how often each word occurs."""
    producer = Confluent().producer(bootstrap)
    with closing(producer):
        send_all(producer, topic, [Message(line.encode()) for line in TEXT * REPEATED])
    return Counter(word.encode() for line in TEXT * REPEATED for word in line.split())


def await_counts(bootstrap: str, topic: str, wanted: Counter[bytes], program: Program) -> None:
    found: dict[bytes | None, int] = {}
    consumer = Confluent().consumer(bootstrap, isolation="read_committed")
    with closing(consumer):
        consumer.assign({(topic, partition): "earliest" for partition in range(2)})

        def counted() -> bool:
            for one in consumer.poll(0.2):
                found[one.key] = int(one.value or b"0")
            return found == wanted

        program.until(counted, f"counted; {found}")
