"""What a seed decides before anything runs: the nodes, their settings, the weather, the workload, the faults."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from kpybroker.sim.network import Weather

CLIENT_PORT = 9092
CONTROLLER_PORT = 9093
CALM = Weather()
WEATHERS = (
    CALM,
    Weather(0.0001, 0.0001, 0.0, 0.0, 0.0),
    Weather(0.001, 0.004, 0.01, 0.3, 0.3),
    Weather(0.02, 0.03, 0.02, 1.0, 0.1),
)
ONE_BROKER_FAULTS = (
    "crash",
    "power_loss",
    "fuse",
    "pause",
    "restart",
    "cut_clients",
    "slow_clients",
    "reset",
    "fsync_stall",
    "disk_full",
    "disk_error",
    "clock_skew",
)
MANY_BROKERS_FAULTS = (*ONE_BROKER_FAULTS, "partition", "one_way", "isolate", "slow_node")
REPLICAS_MAX = 3
LOSES_UNSYNCED = ("power_loss",)


@dataclass(frozen=True)
class NodeSetup:
    """One node: its id, its address, and Kafka's settings for it."""

    node_id: int
    address: str
    properties: dict[str, str]


@dataclass(frozen=True)
class Setup:
    """Everything that is not chance on the way."""

    seed: int
    nodes: tuple[NodeSetup, ...]
    trouble_s: float
    faults: tuple[str, ...]
    """Which faults happen; none, in a quiet run."""
    pause_between_s: float
    weather: Weather
    survives: tuple[int, ...]
    """What was acknowledged with these acks may not be lost under these faults and settings."""
    replicas: int
    """What topics have at most."""
    topics: tuple[TopicSetup, ...]
    producers: int
    consumers: int
    members: int
    committers: int
    cold_odds: float
    window_bytes: int
    spare: int
    """How many nodes may be down or unreachable at once."""


@dataclass(frozen=True)
class TopicSetup:
    """A topic of the workload."""

    name: str
    partitions: int
    replicas: int
    configs: dict[str, str]


def setup_of(
    seed: int, *, brokers: int = 1, replicas: int | None = None, faults: tuple[str, ...] | None = None
) -> Setup:
    """Draw the setup of a seed. `replicas` is what topics have at most (3); `faults` limits which may be chosen."""
    most = min(replicas or REPLICAS_MAX, brokers)
    random = Random(f"setup {seed} {brokers}")
    fsync = random.choice(("always", "always", "page-cache"))
    offered = faults if faults is not None else (ONE_BROKER_FAULTS if brokers == 1 else MANY_BROKERS_FAULTS)
    if fsync != "always" and most < REPLICAS_MAX:
        # what is acknowledged is in the page cache only: that survives a process, not its machine
        offered = tuple(name for name in offered if name not in LOSES_UNSYNCED)
    chosen = tuple(name for name in offered if random.random() < 0.6) or offered
    shared = _shared_properties(random, fsync, most)
    topics = tuple(_topic(random, number, most) for number in range(random.randint(1, 3)))
    return Setup(
        seed=seed,
        nodes=_nodes(brokers, shared),
        trouble_s=random.uniform(15, 35),
        faults=chosen,
        pause_between_s=random.choice((0.5, 2.0, 5.0)),
        weather=random.choice(WEATHERS),
        survives=(-1, 1) if brokers == 1 and "power_loss" not in chosen else (-1,),
        replicas=most,
        topics=topics,
        producers=random.randint(2, 4),
        consumers=random.randint(1, 2),
        members=random.choice((0, 2, 3)),
        committers=random.randint(0, 2),
        cold_odds=random.choice((0.0, 0.0, 0.3)),
        window_bytes=random.choice((65536, 65536, 4000)),
        spare=(brokers - 1) // 2 if brokers > 1 else 1,
    )


def _shared_properties(random: Random, fsync: str, replicas: int) -> dict[str, str]:
    return {
        "kpybroker.fsync": fsync,
        "kpybroker.max.open.files": random.choice(("16", "512")),
        "log.index.interval.bytes": random.choice(("0", "200", "4096")),
        "log.flush.offset.checkpoint.interval.ms": random.choice(("1000", "5000", "60000")),
        "log.segment.delete.delay.ms": random.choice(("0", "1000", "60000")),
        "metadata.log.max.record.bytes.between.snapshots": random.choice(("500", "3000", "20971520")),
        "offsets.topic.num.partitions": random.choice(("1", "3")),
        "offsets.topic.replication.factor": str(replicas),
        "offsets.topic.segment.bytes": random.choice(("1048576", "104857600")),
        "max.incremental.fetch.session.cache.slots": random.choice(("0", "3", "1000")),
        "group.initial.rebalance.delay.ms": random.choice(("0", "500")),
        "auto.create.topics.enable": "false",
    }


def _topic(random: Random, number: int, most: int) -> TopicSetup:
    replicas = random.choice((1, most, most))
    configs = {"internal.segment.bytes": random.choice(("900", "3000", "100000"))}
    if replicas == REPLICAS_MAX:
        configs["min.insync.replicas"] = "2"
    return TopicSetup(f"topic{number}", random.randint(1, 3), replicas, configs)


def _nodes(brokers: int, shared: dict[str, str]) -> tuple[NodeSetup, ...]:
    addresses = {node_id: f"10.0.0.{node_id}" for node_id in range(1, brokers + 1)}
    voters = {}
    if brokers > 1:
        listed = ",".join(f"{node_id}@{address}:{CONTROLLER_PORT}" for node_id, address in addresses.items())
        voters = {"controller.quorum.voters": listed}
    nodes = []
    for node_id, address in addresses.items():
        listeners = f"PLAINTEXT://{address}:{CLIENT_PORT}"
        if brokers > 1:
            listeners += f",CONTROLLER://{address}:{CONTROLLER_PORT}"
        own = {"node.id": str(node_id), "log.dirs": "/data", "listeners": listeners}
        nodes.append(NodeSetup(node_id, address, {**shared, **voters, **own}))
    return tuple(nodes)
