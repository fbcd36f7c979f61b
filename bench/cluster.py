"""Loads on three brokers: the cost of replication, and of a cluster without clients."""

import time

from confluent_kafka import Producer

from bench.brokers import cluster as new_cluster
from bench.brokers import target_of
from bench.control import create_topic, delete_topic, fresh_name
from bench.java import JavaProduce
from bench.latency import RawAckLatency
from bench.librdkafka import BATCH, PARTITIONS, Produce, payloads, produce_all
from bench.measure import Better, Brokers, Case, LoadError, Measure
from bench.produce_raw import first_reply, produce_frame
from bench.raw import Connection
from bench.records import batch
from bench.target import ClusterTarget, Target
from kpybroker.wire.rpc import create_topics, delete_topics

TOPICS = 1000
RETRY_S = 0.02
TIMEOUT_S = 120.0
BEHIND_RECORDS = 300_000


def clustered(target: Target) -> ClusterTarget:
    """A target of Brokers.CLUSTER."""
    assert isinstance(target, ClusterTarget)
    return target


class ClusterProduce(Produce):
    """librdkafka with acks=all (its default) to three replicas. Three JVMs need a long warm-up."""

    family = "cluster"
    brokers = Brokers.CLUSTER
    warm_up_slices = 10

    def __init__(self, size_bytes: int, label: str, count: int) -> None:
        name = f"cluster-librdkafka-{size_bytes}"
        rate = Measure(f"{name}.rate", label, "k/s", Better.HIGHER, 1.0, 1.2)
        super().__init__(
            size_bytes,
            "none",
            count,
            rate,
            Measure(f"{name}.cpu", "… brokers' CPU", "s/million", Better.LOWER, 1.0, 0.7),
        )
        self.name = name


class ClusterJavaProduce(JavaProduce):
    """Java with acks=all to three replicas."""

    family = "cluster"
    brokers = Brokers.CLUSTER
    warm_up_slices = 1
    records = 100_000
    warm_up_records = 50_000


class ClusterAckLatency(RawAckLatency):
    """Latency until the followers have a record and it is acknowledged."""

    family = "cluster"
    name = "cluster-ack-raw"
    brokers = Brokers.CLUSTER
    warm_up_slices = 8
    measures = (
        Measure("cluster-ack-raw.p50", "RF 3: ack latency, raw, 1,000 msg/s, p50", "ms", Better.LOWER, 1.0, 0.8),
        Measure("cluster-ack-raw.p99", "… p99", "ms", Better.LOWER, 1.0, 0.5),
        Measure("cluster-ack-raw.p999", "… p99.9", "ms", Better.LOWER, 10, 5, absolute=True),
    )


class ClusterTopics(Case):
    """One CreateTopics of 1,000 topics with three replicas, until each topic has taken a record with acks=all."""

    family = "cluster"
    name = "cluster-topics"
    brokers = Brokers.CLUSTER
    warm_up_slices = 0
    repeats = 0
    measures = (
        Measure("cluster-topics.created", "1,000 topics of RF 3 created and usable", "s", Better.LOWER, 0.3, 0.15),
        Measure("cluster-topics.memory", "… memory per partition, all three together", "KiB", Better.LOWER, 1.0, 0.5),
    )

    def slice(self, target: Target) -> dict[str, float]:
        prefix = fresh_name("t")
        names = [f"{prefix}-{number}" for number in range(TOPICS)]
        before = target.resident_bytes()
        nodes = clustered(target).nodes
        address = nodes.brokers[0].address
        with Connection(Target(target.name, f"{address[0]}:{address[1]}", 0)) as connection:
            began = time.perf_counter()
            self._create(connection, names)
            self._use(target, names)
            created_s = time.perf_counter() - began
            grown = target.resident_bytes() - before
            gone = [delete_topics.DeleteTopicState(name=name) for name in names]
            connection.ask(20, 6, delete_topics.Request(topics=gone, timeout_ms=60_000), delete_topics.Response)
        time.sleep(2)
        return {"cluster-topics.created": created_s, "cluster-topics.memory": grown / TOPICS / 1024}

    def _create(self, connection: Connection, names: list[str]) -> None:
        config = create_topics.CreatableTopicConfig(name="file.delete.delay.ms", value="100")
        topics = [
            create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=3, configs=[config])
            for name in names
        ]
        answer = connection.ask(19, 7, create_topics.Request(topics=topics, timeout_ms=60_000), create_topics.Response)
        refused = [topic for topic in answer.topics if topic.error_code]
        if refused:
            raise LoadError(f"{connection.target.name} did not create {refused[0]}")

    def _use(self, target: Target, names: list[str]) -> None:
        """Send one record to each topic, directly to its leader."""
        producer = Producer(
            {"bootstrap.servers": target.bootstrap, "linger.ms": 0, "topic.metadata.refresh.sparse": False}
        )
        refused: list[str] = []
        for name in names:
            producer.produce(name, b"x", on_delivery=lambda error, message: error and refused.append(str(error)))
        if producer.flush(TIMEOUT_S) or refused:
            raise LoadError(f"{target.name} did not accept a record for each topic: {refused[:1]}")


class CatchUp(Case):
    """A follower is down while 300 MB are written. Measures the time from its start until it is in all ISRs."""

    family = "cluster"
    name = "cluster-catch-up"
    brokers = Brokers.CLUSTER
    warm_up_slices = 0
    repeats = 0
    measures = (
        Measure("cluster-catch-up.rate", "a returning replica catches up (from exec)", "MB/s", Better.HIGHER, 1.0, 1.2),
    )

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        nodes = clustered(target).nodes
        create_topic(target, topic, PARTITIONS)
        nodes.await_in_sync(topic)
        away = nodes.nodes[max(node.node_id for node in nodes.brokers if node.node_id != nodes.active_controller())]
        away.stop()
        values = payloads(1024)
        messages = [{"value": values[i % len(values)]} for i in range(BATCH)]
        settings = {"bootstrap.servers": target.bootstrap, "queue.buffering.max.messages": 1_000_000}
        settings["queue.buffering.max.kbytes"] = 1_048_576
        produce_all(Producer(settings), topic, messages, BEHIND_RECORDS)
        began = time.perf_counter()
        away.spawn()
        away.await_ready()
        nodes.await_in_sync(topic, patience_s=TIMEOUT_S)
        taken_s = time.perf_counter() - began
        delete_topic(target, topic)
        return {"cluster-catch-up.rate": BEHIND_RECORDS * 1024 / 1e6 / taken_s}


class ClusterStart(Case):
    """Three nodes on empty directories: time from exec to the first record acknowledged with acks=all."""

    family = "cluster"
    name = "cluster-start"
    brokers = Brokers.NONE
    warm_up_slices = 0
    repeats = 0
    measures = (
        Measure("cluster-start.s", "three nodes: exec to the first record", "s", Better.LOWER, 1.5, 1.0, absolute=True),
        Measure("cluster-start.rss", "… memory (RSS) of the three", "MB", Better.LOWER, 300, 250, absolute=True),
    )

    def slice(self, target: Target) -> dict[str, float]:
        """Uses only the name of `target`. Kafka's directories are formatted before."""
        nodes = new_cluster(target.name)
        if target.name == "kafka":
            for node in nodes.nodes.values():
                node.prepare()
        began = time.perf_counter()
        with nodes:
            started = target_of(nodes)
            topic = fresh_name("start")
            create_topic(started, topic, 1)
            with Connection(started.leading(topic)) as connection:
                first_reply(connection, topic, produce_frame(topic, 0, batch(1, 100), acks=-1))
            taken_s = time.perf_counter() - began
            return {"cluster-start.s": taken_s, "cluster-start.rss": started.resident_bytes() / 1e6}


def cases() -> list[Case]:
    return [
        ClusterStart(),
        ClusterProduce(100, "RF 3: librdkafka produce 100 B, acks=all", 600_000),
        ClusterProduce(1024, "RF 3: librdkafka produce 1 KiB, acks=all", 200_000),
        ClusterJavaProduce("cluster-java", "RF 3: Java producer 1 KiB, acks=all", "all", (1.0, 1.2), (1.0, 0.7)),
        ClusterAckLatency(),
        CatchUp(),
        ClusterTopics(),
    ]
