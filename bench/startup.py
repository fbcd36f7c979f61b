"""The cost of an unused broker: time to the first acknowledged record, memory, and memory per connection."""

import contextlib
import os
import threading
import time
from pathlib import Path

from bench.brokers import broker
from bench.control import fresh_name
from bench.measure import Better, Brokers, Case, LoadError, Measure
from bench.produce_raw import produce_frame
from bench.raw import HEADER_BYTES, Connection, frame
from bench.records import batch
from bench.target import Target
from kpybroker.errors import ErrorCode
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.rpc import api_versions, create_topics, produce

RETRY_S = 0.001
TIMEOUT_S = 60.0
CONNECTIONS = 1000
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


class Start(Case):
    """Time from exec on an empty data directory (Kafka's is formatted before) to the first acknowledged record."""

    family = "startup"
    name = "start"
    brokers = Brokers.NONE
    warm_up_slices = 0
    is_quick = True
    measures = (
        Measure("start.ms", "exec to first acknowledged Produce", "ms", Better.LOWER, 0.10, 0.05),
        Measure("start.cpu", "… broker CPU until it serves", "ms", Better.LOWER),
        Measure("start.rss", "memory (RSS) after start", "MB", Better.LOWER, 0.12, 0.09),
    )

    def slice(self, target: Target) -> dict[str, float]:
        """Uses only the name of `target`, because each slice starts a new broker."""
        server = broker(target.name, {})
        acknowledged_at: list[float] = []
        records = batch(1, 100)
        client = threading.Thread(
            target=lambda: acknowledged_at.append(_first_acknowledgement(server.bootstrap, records)), daemon=True
        )
        client.start()
        with server:
            client.join(TIMEOUT_S)
            if not acknowledged_at:
                raise LoadError(f"{target.name} acknowledged no record within {TIMEOUT_S:.0f} s of its start")
            started = Target(target.name, server.bootstrap, server.pid)
            used, resident_bytes = started.cpu(), started.resident_bytes()
        return {
            "start.ms": (acknowledged_at[0] - server.exec_at) * 1e3,
            "start.cpu": used.per(1e-3),
            "start.rss": resident_bytes / 1e6,
        }


class ColdStart(Start):
    """The same with an empty page cache: programs and libraries are read from the disk. Needs root on Linux."""

    name = "start-cold"
    is_quick = False
    measures = (
        Measure(
            "start-cold.ms", "exec to first acknowledged Produce, empty page cache", "ms", Better.LOWER, 0.10, 0.05
        ),
    )

    def slice(self, target: Target) -> dict[str, float]:
        os.sync()
        try:
            DROP_CACHES.write_text("3")
        except OSError as error:
            raise LoadError(f"cannot empty the page cache: {error}") from error
        return {"start-cold.ms": super().slice(target)["start.ms"]}


def _first_acknowledgement(bootstrap: str, records: bytes) -> float:
    """Try to connect every millisecond, create a topic, and write to it. Returns the perf_counter of the
    acknowledgement."""
    topic = fresh_name("start")
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(OSError, LoadError),
            Connection(Target("starting", bootstrap, 0)) as connection,
        ):
            while not _created(connection, topic) or not _acknowledged(connection, topic, records):
                time.sleep(RETRY_S)
            return time.perf_counter()
        time.sleep(RETRY_S)
    raise LoadError(f"no record acknowledged within {TIMEOUT_S:.0f} s")


def _created(connection: Connection, topic: str) -> bool:
    new = create_topics.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    request = create_topics.Request(topics=[new], timeout_ms=30_000)
    answer = connection.ask(19, 7, request, create_topics.Response)
    return answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)


def _acknowledged(connection: Connection, topic: str, records: bytes) -> bool:
    connection.socket.sendall(produce_frame(topic, 0, records))
    answer = parse(produce.Response, 12, connection.reply(), HEADER_BYTES)
    return bool(answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE)


class IdleConnection(Case):
    """The memory of connections that have sent one request and then stay idle.

    Every slice opens another thousand connections and keeps them open, because the memory of closed connections would
    hide the cost.
    """

    family = "startup"
    name = "idle-connection"
    only = "kpybroker"
    warm_up_slices = 0
    repeats = 0  # each slice adds connections
    measures = (Measure("idle-connection.kib", "an idle connection", "KiB", Better.LOWER, 10, 6, absolute=True),)

    def __init__(self) -> None:
        self.open: list[Connection] = []

    def prepare(self, target: Target) -> None:
        self._connect(target)

    def slice(self, target: Target) -> dict[str, float]:
        before = target.resident_bytes()
        for _ in range(CONNECTIONS):
            self._connect(target)
        time.sleep(1)
        return {"idle-connection.kib": (target.resident_bytes() - before) / CONNECTIONS / 1024}

    def _connect(self, target: Target) -> None:
        connection = Connection(target)
        self.open.append(connection)
        request = api_versions.Request(client_software_name="bench", client_software_version="1")
        connection.socket.sendall(frame(18, 3, request))
        connection.reply()

    def clean(self, target: Target) -> None:
        for connection in self.open:
            connection.socket.close()
        self.open.clear()


def cases() -> list[Case]:
    return [Start(), ColdStart(), IdleConnection()]
