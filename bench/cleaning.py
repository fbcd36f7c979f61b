"""The cost of cleaning a compacted log: bytes per second of CPU, and the response times of other requests meanwhile."""

import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka.admin import AdminClient, NewTopic

from bench import control
from bench.brokers import broker
from bench.measure import Better, Brokers, Case, LoadError, Measure
from bench.percentile import percentile
from bench.produce_raw import first_reply, produce_frame
from bench.raw import Connection, frame
from bench.target import Target
from kpybroker.storage.files.checkpoint_files import CLEANED
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import api_versions

TOPIC = "cleaning"
SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "104857600", "min.cleanable.dirty.ratio": "0.01"}
TOTAL_BYTES = 1 << 30
BATCH_RECORDS = 100
VALUE_BYTES = 100
KEYS = 500_000
"""Each key is written about fifteen times."""
PAUSE_S = 0.001
TIMEOUT_S = 600.0


class Cleaning(Case):
    """Cleans a gigabyte of records with half a million keys, written while the cleaner was off.

    A client sends ApiVersions every millisecond on a separate connection; its longest wait is the worst stall.
    """

    family = "cleaning"
    name = "cleaning"
    brokers = Brokers.NONE
    warm_up_slices = 0
    repeats = 0
    runs = 1
    measures = (
        Measure("cleaning.rate", "cleaning 1 GB, by CPU time", "MB/s", Better.HIGHER, 1.0, 1.5),
        Measure("cleaning.p99", "… a request beside it, p99", "ms", Better.LOWER, 5, 2, absolute=True),
        Measure("cleaning.worst", "… the slowest", "ms", Better.LOWER, 20, 10, absolute=True),
    )

    def slice(self, target: Target) -> dict[str, float]:
        """Uses only the name of `target`."""
        with TemporaryDirectory(prefix="bench-cleaning-") as directory:
            with broker(target.name, {"log.cleaner.enable": "false"}, Path(directory)) as server:
                size_bytes = _fill(Target(target.name, server.bootstrap, server.pid))
            control.forget()
            offset = max(int(file.stem) for file in (server.data / f"{TOPIC}-0").glob("*.log"))
            with broker(target.name, {"log.cleaner.backoff.ms": "1000"}, Path(directory)) as server:
                cleaning = Target(target.name, server.bootstrap, server.pid)
                before = cleaning.cpu()
                waits_ms = _ask_until_cleaned(cleaning, server.data / CLEANED, offset)
                cpu_s = (cleaning.cpu() - before).total_s
        return {
            "cleaning.rate": size_bytes / 1e6 / cpu_s,
            "cleaning.p99": percentile(waits_ms, 99),
            "cleaning.worst": max(waits_ms),
        }


def _fill(target: Target) -> int:
    """Write the log. Returns its size in bytes."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=SETTINGS)])[TOPIC].result(30)
    chance = random.Random(1)
    written = 0
    with Connection(target) as connection:
        first_reply(connection, TOPIC, produce_frame(TOPIC, 0, _records(chance)))
        while written < TOTAL_BYTES:
            records = _records(chance)
            connection.socket.sendall(produce_frame(TOPIC, 0, records))
            connection.reply()
            written += len(records)
    return written


def _records(chance: random.Random) -> bytes:
    keys = (b"key-%012d" % chance.randrange(KEYS) for _ in range(BATCH_RECORDS))
    now_ms = int(time.time() * 1000)
    return bytes(encode_batch([(key, chance.randbytes(VALUE_BYTES)) for key in keys], timestamp_ms=now_ms))


def _ask_until_cleaned(target: Target, checkpoint: Path, offset: int) -> list[float]:
    waits_ms: list[float] = []
    question = frame(18, 3, api_versions.Request(client_software_name="bench", client_software_version="1"))
    deadline = time.monotonic() + TIMEOUT_S
    with Connection(target) as connection:
        while f"{TOPIC} 0 {offset}\n" not in (checkpoint.read_text() if checkpoint.exists() else ""):
            if time.monotonic() > deadline:
                raise LoadError(f"{target.name} did not clean up to offset {offset}")
            began = time.perf_counter()
            connection.socket.sendall(question)
            connection.reply()
            waits_ms.append((time.perf_counter() - began) * 1e3)
            time.sleep(PAUSE_S)
    return waits_ms


def cases() -> list[Case]:
    return [Cleaning()]
