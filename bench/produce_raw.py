"""Produce with pre-encoded batches over eight connections, each to its own partition."""

import time

from bench.control import create_topic, delete_topic, end_offsets, fresh_name
from bench.load import Load, Stream, drive
from bench.measure import Better, Brokers, Case, LoadError, Measure
from bench.memory import LITTLE_BYTES, TOUCHED_BYTES
from bench.raw import HEADER_BYTES, Connection, frame
from bench.records import batch
from bench.target import Target
from kpybroker.wire.rpc import produce

KEY, VERSION = 0, 12
CONNECTIONS = 8


def produce_frame(topic: str, partition: int, records: bytes, acks: int = 1) -> bytes:
    to = produce.PartitionProduceData(index=partition, records=records)
    topics = [produce.TopicProduceData(name=topic, partition_data=[to])]
    return frame(KEY, VERSION, produce.Request(acks=acks, timeout_ms=30_000, topic_data=topics))


def error_position(topic: str) -> int:
    """The position of the error code in a reply: after two array lengths, the name and the partition index."""
    return HEADER_BYTES + 1 + (1 + len(topic)) + 1 + 4


def first_reply(connection: Connection, topic: str, request: bytes) -> bytes:
    """The reply to the first successful Produce: just after CreateTopics, Kafka refuses some."""
    at = error_position(topic)
    deadline = time.monotonic() + 10
    while True:
        connection.socket.sendall(request)
        reply = connection.reply()
        if reply[at : at + 2] == b"\0\0":
            return reply
        if time.monotonic() > deadline:
            raise LoadError(f"{connection.target.name} does not accept records for {topic}: {reply!r}")
        time.sleep(0.01)


class RawProduce(Case):
    """`records` records of `record_bytes` in each batch, `depth` requests in flight on each connection, acks=1."""

    family = "produce"
    seconds = 1.5
    warm_up_slices = 10

    def __init__(self, name: str, depth: int, records: int, record_bytes: int, measures: tuple[Measure, ...]) -> None:
        self.is_quick = self.brokers is Brokers.DEFAULT and records < 1000  # 1 MB depends on the file system
        self.touched_bytes = LITTLE_BYTES if records == 1 else TOUCHED_BYTES
        self.name = name
        self.depth = depth
        self.records = records
        self.batch = batch(records, record_bytes)
        self.measures = measures

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, CONNECTIONS)
        connections = [Connection(target) for _ in range(CONNECTIONS)]
        try:
            load = self._load(target, topic, connections)
        finally:
            for connection in connections:
                connection.socket.close()
        stored, acknowledged = sum(end_offsets(target, topic, CONNECTIONS)), load.all_replies + CONNECTIONS
        delete_topic(target, topic)
        if stored != acknowledged * self.records:
            raise LoadError(f"{target.name} holds {stored} records after {acknowledged} acknowledged batches")
        return self.figures(load)

    def _load(self, target: Target, topic: str, connections: list[Connection]) -> Load:
        streams = []
        for partition, connection in enumerate(connections):
            request = produce_frame(topic, partition, self.batch)
            sample = first_reply(connection, topic, request)
            streams.append(Stream(connection, [request], self.depth, sample, (error_position(topic),)))
        return drive(target, streams, self.seconds)

    def figures(self, load: Load) -> dict[str, float]:
        """Figures by the last part of each measure's key."""
        per_s = load.replies / load.elapsed_s
        gigabytes = load.replies * len(self.batch) / 1e9
        found = {
            "rate": per_s / 1e3,
            "cpu": load.cpu.per(load.replies / 1e6),
            "throughput": per_s * len(self.batch) / 1e6,
            "gigabyte_cpu": load.cpu.per(gigabytes),
            "gigabyte_user_cpu": load.cpu.user_s / gigabytes,
        }
        return {measure.key: found[measure.key.rpartition(".")[2]] for measure in self.measures}


class RawProduceOnDisk(RawProduce):
    """The same load on brokers that acknowledge records only when they are on disk."""

    brokers = Brokers.FSYNC
    seconds = 2.0
    warm_up_slices = 3


def _small(depth: int, rate: tuple[float, float], cpu: tuple[float, float]) -> Case:
    name = f"produce-small-{depth}"
    label = f"small Produce (1 × 100 B), 8 connections, {depth} in flight"
    measures = (
        Measure(f"{name}.rate", label, "k/s", Better.HIGHER, *rate),
        Measure(f"{name}.cpu", "… broker CPU", "µs/request", Better.LOWER, *cpu),
    )
    return RawProduce(name, depth, 1, 100, measures)


def _large(
    name: str, label: str, records: int, rate: tuple[float | None, float | None], cpu: tuple[Measure, ...]
) -> Case:
    return RawProduce(
        name, 1, records, 1024, (Measure(f"{name}.throughput", label, "MB/s", Better.HIGHER, *rate), *cpu)
    )


def _on_disk(depth: int, floor: float, goal: float) -> Case:
    name = f"fsync-produce-{depth}"
    label = f"on disk: small Produce, {depth} in flight"
    return RawProduceOnDisk(name, depth, 1, 100, (Measure(f"{name}.rate", label, "k/s", Better.HIGHER, floor, goal),))


def cases() -> list[Case]:
    """All cases. For large batches user CPU is the broker's own; system CPU is mostly the page cache."""
    lower = Better.LOWER
    return [
        _small(1, (1.6, 2.2), (0.45, 0.33)),
        _small(10, (2.5, 3.6), (0.3, 0.2)),
        _small(100, (3.2, 4.1), (0.25, 0.17)),
        _large(
            "produce-1mb",
            "Produce, 1 MB batches",
            1000,
            (None, None),  # it depends on the memory and the file system
            (
                Measure("produce-1mb.gigabyte_user_cpu", "… broker user CPU", "s/GB", lower, 0.25, 0.2),
                Measure("produce-1mb.gigabyte_cpu", "… broker CPU", "s/GB", lower),
            ),
        ),
        _large(
            "produce-16kb",
            "Produce, 16 KB batches",
            16,
            (1.5, 2.0),
            (
                Measure("produce-16kb.gigabyte_cpu", "… broker CPU", "s/GB", lower, 0.35, 0.25),
                Measure("produce-16kb.gigabyte_user_cpu", "… broker user CPU", "s/GB", lower),
            ),
        ),
        _on_disk(1, 1, 1.5),
        _on_disk(10, 3, 5),
        _on_disk(100, 6, 10),
    ]
