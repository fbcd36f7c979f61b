"""Tests that the replicas of a compacted topic on brokers of both kinds keep the last record of each key."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.changing import until
from compat_tests.rolling import QUIET
from compat_tests.rolling_rounds import files_of
from kpybroker.wire.records.batch import read_records, split
from oracle.cluster import Cluster
from oracle.kafka import QUICK_JVM
from oracle.takeover import KAFKA, KPYBROKER

TOPIC = "latest"
CONFIG = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "600000",
}
PROPERTIES = {"log.cleaner.backoff.ms": "500"}
ROUNDS, KEYS = 4, 50

Kept = dict[int, tuple[bytes | None, bytes | None]]
"""Key and value of each record by offset."""


def kept(cluster: Cluster, node_id: int, index: int) -> Kept:
    """The records in a replica's files."""
    data = files_of(cluster.nodes[node_id].data, TOPIC, index)
    batches = split(memoryview(data)) if data else []
    return {row.offset: (row.key, row.value) for batch in batches for row in read_records(batch)}


def is_cleaned(cluster: Cluster, node_id: int, index: int, written: Kept) -> bool:
    """Whether nothing is left of the records of earlier rounds but the last of each key."""
    found = kept(cluster, node_id, index)
    older = [key for offset, (key, _) in found.items() if offset < len(written) - KEYS - 1]
    return bool(found) and len(older) == len(set(older))


def writes(chance: random.Random) -> Iterator[tuple[bytes, bytes | None]]:
    for _ in range(KEYS):
        yield b"key %d" % chance.randrange(KEYS), None if chance.random() < 0.1 else chance.randbytes(100)


@pytest.mark.parametrize("controller", [KAFKA, KPYBROKER])
def test_both_kinds_keep_the_last_record_of_each_key(controller: str) -> None:
    """Each kind leads one partition. Which earlier records are left depends on when a broker cleans."""
    cluster = Cluster(KAFKA, brokers=2, grows=True, properties=PROPERTIES, jvm=QUICK_JVM)
    cluster.become(controller, 1)
    cluster.become(KPYBROKER if controller == KAFKA else KAFKA, 2)
    chance = random.Random(5)
    with cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        topic = NewTopic(TOPIC, 2, replica_assignment=[[1, 2], [2, 1]], config=CONFIG)
        until(lambda: len(cluster.brokers) == len(admin.list_topics(timeout=10).brokers), "both brokers are there")
        admin.create_topics([topic], operation_timeout=30)[TOPIC].result(30)
        written: list[Kept] = [{}, {}]
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, **QUIET})
        now_ms = int(time.time() * 1000)
        for _ in range(ROUNDS):
            for index in (0, 1):
                for key, value in writes(chance):
                    written[index][len(written[index])] = key, value
                    producer.produce(TOPIC, value, key, index, timestamp=now_ms)
            assert producer.flush(60) == 0
            now_ms += 2 * int(CONFIG["segment.ms"])  # so that the next record begins a new segment
        for index in (0, 1):
            written[index][len(written[index])] = b"last", b""
            producer.produce(TOPIC, b"", b"last", index, timestamp=now_ms)
        assert producer.flush(60) == 0
        for node_id in cluster.nodes:
            for index, wrote in enumerate(written):
                until(partial(is_cleaned, cluster, node_id, index, wrote), f"node {node_id} has cleaned {index}")
                found = kept(cluster, node_id, index)
                assert all(wrote[offset] == record for offset, record in found.items())
                assert dict(found.values()) == dict(wrote.values()), "the last value of each key, in order of offset"
