"""Fetch with pre-encoded requests: one batch per request, each connection with its own partition."""

from bench.control import create_topic, delete_topic, fresh_name
from bench.load import Stream, drive
from bench.measure import Better, Case, LoadError, Measure
from bench.memory import LITTLE_BYTES
from bench.produce_raw import first_reply, produce_frame
from bench.raw import HEADER_BYTES, Connection, frame
from bench.records import batch
from bench.target import Target
from kpybroker.wire.rpc import fetch, metadata

KEY, VERSION = 1, 13
CONNECTIONS = 8
ERRORS_AT = (HEADER_BYTES + 4, HEADER_BYTES + 4 + 2 + 4 + 1 + 16 + 1 + 4)
"""Positions of the error codes of the reply and of its only partition."""


def topic_id(connection: Connection, topic: str) -> bytes:
    asked = metadata.Request(topics=[metadata.MetadataRequestTopic(name=topic)])
    found: bytes = connection.ask(3, 12, asked, metadata.Response).topics[0].topic_id
    return found


def fetch_frame(topic: bytes, partition: int, offset: int, size_bytes: int) -> bytes:
    """A sessionless Fetch whose max bytes admit only the batch at `offset`."""
    wanted = fetch.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=size_bytes)
    topics = [fetch.FetchTopic(topic_id=topic, partitions=[wanted])]
    request = fetch.Request(max_wait_ms=500, min_bytes=1, max_bytes=size_bytes, session_epoch=-1, topics=topics)
    return frame(KEY, VERSION, request)


class RawFetch(Case):
    """Eight connections with one request in flight on each. The data is in the page cache."""

    family = "fetch"
    touched_bytes = LITTLE_BYTES
    is_quick = True
    seconds = 1.5

    def __init__(self, name: str, batches: int, records: int, record_bytes: int, measures: tuple[Measure, ...]) -> None:
        self.name = name
        self.batches = batches
        self.records = records
        self.batch = batch(records, record_bytes)
        self.measures = measures
        self.topics: dict[str, str] = {}

    def prepare(self, target: Target) -> None:
        topic = self.topics[target.name] = fresh_name(self.name)
        create_topic(target, topic, CONNECTIONS)
        with Connection(target) as connection:
            for partition in range(CONNECTIONS):
                request = produce_frame(topic, partition, self.batch)
                first_reply(connection, topic, request)
                for _ in range(self.batches - 1):
                    connection.socket.sendall(request)
                    connection.reply()

    def slice(self, target: Target) -> dict[str, float]:
        connections = [Connection(target) for _ in range(CONNECTIONS)]
        try:
            streams = self._streams(self.topics[target.name], connections)
            load = drive(target, streams, self.seconds)
        finally:
            for connection in connections:
                connection.socket.close()
        gigabytes = load.replies * len(self.batch) / 1e9
        found = {
            "rate": load.replies / load.elapsed_s / 1e3,
            "cpu": load.cpu.per(load.replies / 1e6),
            "throughput": gigabytes / load.elapsed_s,
            "gigabyte_cpu": load.cpu.per(gigabytes),
        }
        return {measure.key: found[measure.key.rpartition(".")[2]] for measure in self.measures}

    def _streams(self, topic: str, connections: list[Connection]) -> list[Stream]:
        identity = topic_id(connections[0], topic)
        streams = []
        for partition, connection in enumerate(connections):
            offsets = range(0, self.batches * self.records, self.records)
            frames = [fetch_frame(identity, partition, offset, len(self.batch)) for offset in offsets]
            connection.socket.sendall(frames[-1])
            sample = connection.reply()
            if not sample.rstrip(b"\0").endswith(self.batch[-8:].rstrip(b"\0")):
                raise LoadError(f"{connection.target.name} did not return the last batch of partition {partition}")
            streams.append(Stream(connection, frames, 1, sample, ERRORS_AT))
        return streams

    def clean(self, target: Target) -> None:
        delete_topic(target, self.topics[target.name])


def cases() -> list[Case]:
    higher, lower = Better.HIGHER, Better.LOWER
    small = (
        Measure("fetch-1kb.rate", "Fetch 1 KB, 8 connections", "k/s", higher, 1.7, 2.2),
        Measure("fetch-1kb.cpu", "… broker CPU", "µs/request", lower, 0.4, 0.28),
    )
    medium = (
        Measure("fetch-64kb.throughput", "Fetch 64 KB", "GB/s", higher, 1.3, 1.6),
        Measure("fetch-64kb.gigabyte_cpu", "… broker CPU", "s/GB", lower, 0.6, 0.41),
    )
    large = (
        Measure("fetch-1mb.throughput", "Fetch 1 MB", "GB/s", higher, 0.7, 1.0),
        Measure("fetch-1mb.gigabyte_cpu", "… broker CPU", "s/GB", lower),
    )
    return [
        RawFetch("fetch-1kb", 256, 1, 940, small),
        RawFetch("fetch-64kb", 128, 64, 1000, medium),
        RawFetch("fetch-1mb", 16, 1000, 1024, large),
    ]
