"""Draws the setup of a seed before the run: the nodes, their settings, network delays, the workload, the faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from kpybroker.sim.laws.tables import Forgetting
from kpybroker.sim.world.wires import Weather
from kpybroker.storage.dirs.formatting import encode_id

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
MANY_BROKERS_FAULTS = (*ONE_BROKER_FAULTS, "partition", "one_way", "isolate", "slow_node", "deaf")
REPLICAS_MAX = 3
RETENTION_MS = 8000
VOTERS_ODDS = 0.3
SYNCS_S = ((0.0005, 0.004), (0.0005, 0.004), (0.01, 0.06))
"""The durations of a sync on two fast disks and a slow one, which nearly always has unsynced changes."""
CONSUMER_MEMBERS_ODDS = 0.6
CONSUMER_MEMBERS_SESSION_MS = 6000
TRANSACTIONS_ODDS = 0.4
TABLE = "table"
"""The compacted topic."""
TABLE_ODDS = 0.3
LOG_DIRS = ("/data", "/more")
SEVERAL_ODDS = 0.25
"""The probability that brokers have both of `LOG_DIRS`."""
RECREATES_ODDS = 0.2
OUTPUTS = "outputs"
"""The topic to which transformers write."""
LOSES_UNSYNCED = ("power_loss",)
LOST_DIRECTORY = "lost_directory"
LOST_DIRECTORY_ODDS = 0.25
BAD_FILE = "bad_file"
SHORT_DESCRIPTORS = "short_descriptors"
FILE_FAULTS_ODDS = 0.3
WRITE_STALL = "write_stall"
WRITE_STALL_ODDS = 0.3
DISK_HANG = "disk_hang"
DISK_HANG_ODDS = 0.2


@dataclass(frozen=True)
class NodeSetup:
    """One node, with its id, its address and its Kafka settings."""

    node_id: int
    address: str
    properties: dict[str, str]


@dataclass(frozen=True)
class Setup:
    """Everything that is drawn before the run."""

    seed: int
    nodes: tuple[NodeSetup, ...]
    trouble_s: float
    faults: tuple[str, ...]
    """The faults of the run; empty for a run without faults."""
    pause_between_s: float
    weather: Weather
    outlives_power: bool
    """Whether acknowledged records are on disk. If not, they are in the page caches of all in-sync replicas."""
    survives: tuple[int, ...]
    """The values of acks for which acknowledged records must survive these faults with these settings."""
    replicas: int
    """The largest replication factor of topics."""
    topics: tuple[TopicSetup, ...]
    producers: int
    consumers: int
    members: int
    committers: int
    consumer_members: int
    """Members of the consumer protocol."""
    transactors: int
    transformers: int
    cold_odds: float
    window_bytes: int
    sync_s: tuple[float, float]
    """The shortest and the longest duration of a sync."""
    spare: int
    """The number of nodes that may be down or unreachable at the same time."""
    voters_change: bool
    """Whether voters are in the metadata log (KIP-853), so that a client removes and adds them."""
    table: TopicSetup | None = None
    """A compacted topic with keys. If there is one, the logs of the coordinators are also cleaned."""
    table_writers: int = 0
    """The number of clients that write to the table without transactions."""
    transactional_table_writers: int = 0
    """The number of clients that write to the table in transactions."""
    forgetting: Forgetting | None = None
    recreates_topics: bool = False
    """Whether a client deletes and recreates a topic repeatedly."""
    log_dirs: tuple[str, ...] = LOG_DIRS[:1]
    moves_bytes_s: int | None = None
    """The throttle of moves between log directories, so that they are in progress during other events."""
    actors: tuple[str, ...] = ()
    """Actors that take part (`actors/catalog.py`)."""

    @property
    def syncs_slowly(self) -> bool:
        """Whether the disks are slow."""
        return self.sync_s == SYNCS_S[-1]


@dataclass(frozen=True)
class TopicSetup:
    """A topic of the workload."""

    name: str
    partitions: int
    replicas: int
    configs: dict[str, str]


def setup_of(
    seed: int,
    *,
    brokers: int = 1,
    replicas: int | None = None,
    faults: tuple[str, ...] | None = None,
    transacts: bool = False,
    compacts: bool = False,
    moves: bool = False,
) -> Setup:
    """Draw the setup of a seed. `replicas` is the largest replication factor (3), `faults` limits the faults drawn;
    `transacts`, `compacts` and `moves` force transactions, a compacted topic and several log directories."""
    most = min(replicas or REPLICAS_MAX, brokers)
    random = Random(f"setup {seed} {brokers}")
    fsync = random.choice(("always", "always", "page-cache"))
    offered = _offered(faults, brokers, most, fsync)
    chosen = tuple(name for name in offered if random.random() < 0.6) or offered
    shared = _shared_properties(random, fsync, most)
    fewest = 1 if fsync == "always" or "power_loss" not in chosen else most
    topics = tuple(_topic(random, number, fewest, most) for number in range(random.randint(1, 3)))
    if _loses_directories(seed, brokers, most, faults):
        chosen = (*(name for name in chosen if name != LOST_DIRECTORY), LOST_DIRECTORY)
        topics = tuple(replace(topic, replicas=most) for topic in topics)  # a directory must not hold the only replica
    changing = _changes_voters(seed, brokers, chosen)
    shared["replica.lag.time.max.ms"] = Random(f"lag {seed} {brokers}").choice(("1500", "30000"))
    transacting = Random(f"transactions {seed} {brokers}")
    transactors = transacting.choice((1, 2)) if transacting.random() < TRANSACTIONS_ODDS or transacts else 0
    transformers = transacting.choice((1, 2) if transacts else (0, 1, 2)) if transactors else 0
    shared.update(_transaction_properties(transacting, most))
    topics = _with_outputs(tuple(_less_in_sync(topic, transacting) for topic in topics), most, transformers)
    sharing = Random(f"sharing {seed} {brokers}")
    shared.update(_consumer_protocol_properties(sharing))
    consumer_members = sharing.choice((2, 3)) if sharing.random() < CONSUMER_MEMBERS_ODDS and not transactors else 0
    setup = Setup(
        seed=seed,
        nodes=_nodes(brokers, shared, changing=changing),
        trouble_s=random.uniform(15, 35) * (1.0 if brokers == 1 else 0.6 if transactors else 0.8),
        faults=chosen,
        pause_between_s=random.choice((0.5, 2.0, 5.0)),
        weather=random.choice(WEATHERS),
        outlives_power=fsync == "always",
        survives=(-1, 1) if brokers == 1 and "power_loss" not in chosen else (-1,),
        replicas=most,
        topics=topics,
        producers=1 if transactors else random.randint(2, 4),
        consumers=1 if transactors else random.randint(1, 2),
        members=(sharing.choice((0, 0, 1, 2)) if consumer_members else 0 if transactors else random.choice((0, 2, 3))),
        committers=random.randint(0, 2),
        consumer_members=consumer_members,
        transactors=transactors,
        transformers=transformers,
        cold_odds=random.choice((0.0, 0.0, 0.3)),
        window_bytes=random.choice((65536, 65536, 4000)),
        sync_s=Random(f"syncs {seed} {brokers}").choice(SYNCS_S),
        spare=(brokers - 1) // 2 if brokers > 1 else 1,
        voters_change=changing,
    )
    setup = _with_recreation(_with_table(setup, brokers, compacts=compacts), brokers)
    setup = _with_file_faults(_with_directories(setup, brokers, moves=moves), brokers, faults)
    return _with_disk_hangs(_with_write_stalls(setup, brokers, faults), brokers, faults)


def _offered(faults: tuple[str, ...] | None, brokers: int, most: int, fsync: str) -> tuple[str, ...]:
    """The faults that may be drawn."""
    offered = faults if faults is not None else (ONE_BROKER_FAULTS if brokers == 1 else MANY_BROKERS_FAULTS)
    if fsync != "always" and most < REPLICAS_MAX:
        # acknowledged records are only in the page cache, which survives the process but not a power loss
        offered = tuple(name for name in offered if name not in LOSES_UNSYNCED)
    return offered


def _with_outputs(topics: tuple[TopicSetup, ...], most: int, transformers: int) -> tuple[TopicSetup, ...]:
    if not transformers:
        return topics
    return (*topics, TopicSetup(OUTPUTS, 1, most, topics[0].configs if topics[0].replicas == most else {}))


def _changes_voters(seed: int, brokers: int, chosen: tuple[str, ...]) -> bool:
    """Whether voters change. Uses its own Random. They do not change in seeds that lose directories, because a newly
    formatted directory would have the initial voters."""
    may = brokers > 2 and LOST_DIRECTORY not in chosen
    return may and Random(f"voters {seed} {brokers}").random() < VOTERS_ODDS


def _loses_directories(seed: int, brokers: int, most: int, faults: tuple[str, ...] | None) -> bool:
    """Whether nodes lose directories. Uses its own Random, so that all other draws of a seed are the same as without
    this fault."""
    if faults is not None:
        return LOST_DIRECTORY in faults
    drawn = Random(f"lost directory {seed} {brokers}").random() < LOST_DIRECTORY_ODDS
    return drawn and brokers >= REPLICAS_MAX and most >= REPLICAS_MAX


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


def _consumer_protocol_properties(random: Random) -> dict[str, str]:
    return {
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": str(CONSUMER_MEMBERS_SESSION_MS),
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "500",
        "group.consumer.assignment.interval.ms": random.choice(("0", "1000")),
    }


def _less_in_sync(topic: TopicSetup, random: Random) -> TopicSetup:
    """Lower min.insync.replicas of some topics to 1, so that a leader that is alone in the ISR accepts acks=all."""
    if "min.insync.replicas" not in topic.configs or random.random() < 0.6:
        return topic
    return replace(topic, configs={**topic.configs, "min.insync.replicas": "1"})


def _transaction_properties(random: Random, replicas: int) -> dict[str, str]:
    return {
        "transaction.state.log.num.partitions": random.choice(("1", "3")),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": random.choice(("1", "2")) if replicas == REPLICAS_MAX else "1",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": random.choice(("100", "1000")),
    }


def _topic(random: Random, number: int, fewest: int, most: int) -> TopicSetup:
    replicas = random.choice((fewest, most, most))
    configs = {"internal.segment.bytes": random.choice(("900", "3000", "100000"))}
    if replicas == REPLICAS_MAX:
        configs["min.insync.replicas"] = "2"
    return TopicSetup(f"topic{number}", random.randint(1, 3), replicas, configs)


def _with_table(setup: Setup, brokers: int, *, compacts: bool) -> Setup:
    """The setup with a table. Uses its own Random, so that all other draws of a seed are the same as without a
    table."""
    random = Random(f"cleaning {setup.seed} {brokers}")
    if random.random() >= TABLE_ODDS and not compacts:
        return setup
    deletes = random.random() < 0.25
    tombstones_ms = random.choice((500, 86_400_000))
    configs = {
        "cleanup.policy": "compact,delete" if deletes else "compact",
        "internal.segment.bytes": random.choice(("900", "900", "3000")),
        "min.cleanable.dirty.ratio": random.choice(("0.0", "0.2")),
        "delete.retention.ms": str(tombstones_ms),
        "min.compaction.lag.ms": random.choice(("0", "0", "1000")),
        "max.compaction.lag.ms": random.choice(("9223372036854775807", "1500")),
        "retention.ms": str(RETENTION_MS) if deletes else "-1",
    }
    if setup.replicas == REPLICAS_MAX:
        configs["min.insync.replicas"] = "2"
    properties = {
        "log.cleaner.backoff.ms": random.choice(("300", "1500")),
        "log.cleaner.dedupe.buffer.size": "1800000",
        "log.cleaner.io.buffer.load.factor": random.choice(("0.0005", "0.9")),  # about ten keys per pass, or all
        "log.cleaner.min.cleanable.ratio": "0.1",
        "log.initial.task.delay.ms": "500",
        "log.retention.check.interval.ms": "1000",
    }
    is_timely = "clock_skew" not in setup.faults  # otherwise, a broker's clock may be far ahead
    retained_s = tombstones_ms / 1000
    forgetting = Forgetting(retained_s if is_timely else 0.0, retained_s if is_timely or retained_s > 3600 else 0.0)
    if deletes:
        forgetting = replace(forgetting, records_s=RETENTION_MS / 1000 if is_timely else 0.0)
    return replace(
        setup,
        nodes=tuple(replace(node, properties={**node.properties, **properties}) for node in setup.nodes),
        table=TopicSetup(TABLE, random.randint(1, 2), setup.replicas, configs),
        producers=1,
        table_writers=random.choice((1, 2)),
        transactional_table_writers=random.choice((0, 1)),
        forgetting=forgetting,
    )


def _with_recreation(setup: Setup, brokers: int) -> Setup:
    """The setup with or without topics that are recreated. Uses its own Random."""
    return replace(setup, recreates_topics=Random(f"remaking {setup.seed} {brokers}").random() < RECREATES_ODDS)


def _with_directories(setup: Setup, brokers: int, *, moves: bool) -> Setup:
    """The setup with one or several log directories. Uses its own Random."""
    random = Random(f"log dirs {setup.seed} {brokers}")
    if random.random() >= SEVERAL_ODDS and not moves:
        return setup
    log_dirs = {"log.dirs": ",".join(LOG_DIRS)}
    nodes = tuple(replace(node, properties={**node.properties, **log_dirs}) for node in setup.nodes)
    return replace(setup, nodes=nodes, log_dirs=LOG_DIRS, moves_bytes_s=random.choice((None, 3000)))


def _with_file_faults(setup: Setup, brokers: int, faults: tuple[str, ...] | None) -> Setup:
    """The setup with faults of files. Uses its own Random. Indexes are small with these faults, so that they are saved
    while they fill."""
    random = Random(f"file faults {setup.seed} {brokers}")
    drawn = random.random() < FILE_FAULTS_ODDS
    some: tuple[str, ...] = random.choice(((BAD_FILE,), (SHORT_DESCRIPTORS,), (BAD_FILE, SHORT_DESCRIPTORS)))
    if faults is not None:
        some = tuple(name for name in (BAD_FILE, SHORT_DESCRIPTORS) if name in faults)
    if not some or not (drawn or faults is not None):
        return setup
    index_bytes = {"segment.index.bytes": random.choice(("96", "240", "960"))}
    topics = tuple(replace(topic, configs={**topic.configs, **index_bytes}) for topic in setup.topics)
    others = tuple(name for name in setup.faults if name not in some)
    return replace(setup, topics=topics, faults=(*others, *some))


def _with_write_stalls(setup: Setup, brokers: int, faults: tuple[str, ...] | None) -> Setup:
    """The setup with or without stalls of writes. Uses its own Random."""
    if faults is not None or Random(f"write stall {setup.seed} {brokers}").random() >= WRITE_STALL_ODDS:
        return setup
    return replace(setup, faults=(*setup.faults, WRITE_STALL))


def _with_disk_hangs(setup: Setup, brokers: int, faults: tuple[str, ...] | None) -> Setup:
    """The setup with hanging disks. Uses its own Random. There must be several brokers, so that the others can
    continue."""
    if faults is not None or brokers == 1 or Random(f"disk hang {setup.seed} {brokers}").random() >= DISK_HANG_ODDS:
        return setup
    return replace(setup, faults=(*setup.faults, DISK_HANG))


def directory_of(node_id: int) -> bytes:
    """The directory id of an initial voter (KIP-853)."""
    return bytes([node_id]) * 16


def _nodes(brokers: int, shared: dict[str, str], *, changing: bool) -> tuple[NodeSetup, ...]:
    addresses = {node_id: f"10.0.0.{node_id}" for node_id in range(1, brokers + 1)}
    voters = {}
    if brokers > 1:
        listed = ",".join(f"{node_id}@{address}:{CONTROLLER_PORT}" for node_id, address in addresses.items())
        voters = {"controller.quorum.voters": listed}
    if changing:
        first = {node_id: encode_id(directory_of(node_id)) for node_id in addresses}
        listed = ",".join(f"{node_id}@{addresses[node_id]}:{CONTROLLER_PORT}:{text}" for node_id, text in first.items())
        servers = ",".join(f"{address}:{CONTROLLER_PORT}" for address in addresses.values())
        voters = {"kpybroker.initial.controllers": listed, "controller.quorum.bootstrap.servers": servers}
    nodes = []
    for node_id, address in addresses.items():
        listeners = f"PLAINTEXT://{address}:{CLIENT_PORT}"
        if brokers > 1:
            listeners += f",CONTROLLER://{address}:{CONTROLLER_PORT}"
        own = {"node.id": str(node_id), "log.dirs": LOG_DIRS[0], "listeners": listeners}
        nodes.append(NodeSetup(node_id, address, {**shared, **voters, **own}))
    return tuple(nodes)
