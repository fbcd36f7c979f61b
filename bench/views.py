"""The cost of giving a consumer one percent of a topic's records: with a view, or by filtering in the client.

Apache Kafka has no views, so that its consumer always reads everything. The records have 1 KiB and a header `tag`. In a
clustered topic, the matching records share batches, as if each producer sent one tag; in a scattered topic, most
batches have one or none of them.
"""

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.control import create_topic, delete_topic, fresh_name
from bench.librdkafka import payloads
from bench.measure import Better, Case, LoadError, Measure
from bench.target import Target

COUNT = 200_000
BATCH_RECORDS = 50
PERCENT = 1
RARE, COMMON = b"rare", b"common"
WHERE = 'tag == "rare"'
QUEUE = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_048_576}
FIGURES = ("rate", "broker", "client", "bytes")


class Matching(Case):
    """Read the matching records of a topic from its beginning. Rates and costs are per record of the topic."""

    family = "views"
    warm_up_slices = 2

    def __init__(self, layout: str, codec: str, *, with_view: bool) -> None:
        self.layout, self.codec, self.with_view = layout, codec, with_view
        self.name = f"views-{layout}-{codec}-{'view' if with_view else 'client'}"
        told = f"1 % of 1 KiB, {layout}, {codec}"
        if with_view:
            self.measures = (
                *_measures(f"{self.name}-first", f"{told}: a view"),
                *_measures(f"{self.name}-again", "… again"),
            )
        else:
            self.measures = _measures(self.name, f"{told}: the client filters", floor=None)
        self.topics: dict[str, str] = {}
        self.matching = 0

    def prepare(self, target: Target) -> None:
        topic = self.topics[target.name] = fresh_name(self.name)
        create_topic(target, topic, 1)
        chance = random.Random(5)
        tags = _tags(self.layout, chance)
        self.matching = tags.count(RARE)
        values = payloads(1024)
        settings = {"compression.type": self.codec, "batch.num.messages": BATCH_RECORDS, "linger.ms": 50}
        producer = Producer({"bootstrap.servers": target.bootstrap, **settings, **QUEUE})
        for number, tag in enumerate(tags):
            producer.produce(topic, values[number % len(values)], headers=[("tag", tag)])
            if number % 10_000 == 0:
                producer.poll(0)
        if producer.flush(60):
            raise LoadError(f"{target.name} did not acknowledge all records")

    def slice(self, target: Target) -> dict[str, float]:
        topic = self.topics[target.name]
        if not self.with_view:
            return self._read(target, topic, self.name)
        first, again = f"{self.name}-first", f"{self.name}-again"
        if target.name == "kafka":
            return self._read(target, topic, first) | self._read(target, topic, again)
        with _view(target, topic) as view:
            return self._read(target, view, first) | self._read(target, view, again)

    def _read(self, target: Target, topic: str, key: str) -> dict[str, float]:
        received: list[int] = []
        consumer = Consumer(
            {
                "bootstrap.servers": target.bootstrap,
                "group.id": "bench",
                "enable.auto.commit": False,
                "statistics.interval.ms": 50,
                "stats_cb": lambda text: received.append(json.loads(text)["rx_bytes"]),
            }
        )
        broker, client, began = target.cpu(), time.process_time(), time.perf_counter()
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found, last = 0, -1
        while last < COUNT - 1:
            messages = consumer.consume(10_000, 0.1)
            for message in messages:
                found += dict(message.headers() or ())["tag"] == RARE
                last = message.offset() or 0
            if time.perf_counter() - began > 60:
                raise LoadError(f"{target.name} returned {found} of {self.matching} matching records")
        elapsed_s = time.perf_counter() - began
        used, own_s = target.cpu() - broker, time.process_time() - client
        seen = len(received)
        while len(received) == seen:
            consumer.poll(0.1)
        consumer.close()
        if found != self.matching:
            raise LoadError(f"{target.name} returned {found} of {self.matching} matching records")
        figures = (COUNT / elapsed_s / 1e3, used.per(COUNT / 1e6), own_s / COUNT * 1e6, received[-1] / 1e6)
        return {f"{key}.{name}": figure for name, figure in zip(FIGURES, figures, strict=True)}

    def clean(self, target: Target) -> None:
        delete_topic(target, self.topics[target.name])


def _measures(key: str, label: str, floor: float | None = 1.0) -> tuple[Measure, ...]:
    return (
        Measure(f"{key}.rate", label, "k/s", Better.HIGHER, floor),
        Measure(f"{key}.broker", "… broker CPU", "s/million", Better.LOWER),
        Measure(f"{key}.client", "… client CPU", "s/million", Better.LOWER),
        Measure(f"{key}.bytes", "… received", "MB", Better.LOWER),
    )


@contextmanager
def _view(target: Target, source: str) -> Iterator[str]:
    """A view with an expression that no earlier view had, so that the broker has not searched its source yet."""
    name = fresh_name("view")
    where = WHERE.ljust(len(WHERE) + int(name.rpartition("-")[2]))
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    view = NewTopic(name, -1, -1, config={"kpybroker.view.of": source, "kpybroker.view.where": where})
    admin.create_topics([view])[name].result(30)
    yield name
    admin.delete_topics([name])[name].result(30)


def _tags(layout: str, chance: random.Random) -> list[bytes]:
    """The tag of each record. The last record matches, so that a consumer of the matching records knows the end."""
    tags = []
    for _ in range(COUNT // BATCH_RECORDS):
        if layout == "clustered":
            tags += [RARE if chance.random() * 100 < PERCENT else COMMON] * BATCH_RECORDS
        else:
            tags += [RARE if chance.random() * 100 < PERCENT else COMMON for _ in range(BATCH_RECORDS)]
    return [*tags[:-1], RARE]


def cases() -> list[Case]:
    return [
        Matching(layout, codec, with_view=with_view)
        for layout in ("clustered", "scattered")
        for codec in ("none", "lz4")
        for with_view in (True, False)
    ]
