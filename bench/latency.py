"""The latency of small Produce requests at low load: 1,000 a second on one connection."""

import select
import time

from bench.control import create_topic, delete_topic, end_offsets, fresh_name
from bench.librdkafka import undisturbed
from bench.load import Stream
from bench.measure import Better, Case, LoadError, Measure
from bench.memory import LITTLE_BYTES
from bench.percentile import percentile
from bench.produce_raw import error_position, first_reply, produce_frame
from bench.raw import Connection
from bench.records import batch
from bench.target import Target

PER_S = 1000


class RawAckLatency(Case):
    """Time from send to reply with acks=all. Sends follow the clock, even if replies are late."""

    family = "latency"
    name = "ack-raw"
    warm_up_slices = 3
    touched_bytes = LITTLE_BYTES
    seconds = 5.0
    measures = (
        Measure("ack-raw.p50", "ack latency, raw, 1,000 msg/s, p50", "ms", Better.LOWER, None, 0.7),
        Measure("ack-raw.p99", "… p99", "ms", Better.LOWER, 0.34, 0.15),
        Measure("ack-raw.p999", "… p99.9 (acknowledged within 10 ms)", "ms", Better.LOWER, 10, 5, absolute=True),
    )

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, 1)
        request = produce_frame(topic, 0, batch(1, 100), acks=-1)
        with Connection(target.leading(topic)) as connection:
            sample = first_reply(connection, topic, request)
            stream = Stream(connection, [request], 1, sample, (error_position(topic),))
            with undisturbed():
                latencies_s = _latencies(stream, int(PER_S * self.seconds))
        stored = end_offsets(target, topic, 1)[0]
        delete_topic(target, topic)
        if stored != len(latencies_s) + 1:
            raise LoadError(f"{target.name} holds {stored} of {len(latencies_s) + 1} acknowledged records")
        p50, p99, p999 = (percentile(latencies_s, percent) * 1e3 for percent in (50, 99, 99.9))
        return dict(zip((measure.key for measure in self.measures), (p50, p99, p999), strict=True))


def _latencies(stream: Stream, count: int) -> list[float]:
    """Send `count` requests at the fixed rate. Returns the latency of each."""
    sent_at: list[float] = []
    latencies_s: list[float] = []
    clock = time.perf_counter
    began = clock()
    while len(latencies_s) < count:
        due = began + len(sent_at) / PER_S if len(sent_at) < count else clock() + 10
        readable, _, _ = select.select([stream.socket], [], [], max(0.0, due - clock()))
        if readable:
            replies = stream.receive()
            now = clock()
            latencies_s += [now - sent for sent in sent_at[len(latencies_s) : len(latencies_s) + replies]]
        elif len(sent_at) < count:
            sent_at.append(clock())
            stream.send(1)
        else:
            raise LoadError(f"no reply for 10 s; {count - len(latencies_s)} acknowledgements are missing")
    return latencies_s


def cases() -> list[Case]:
    return [RawAckLatency()]
