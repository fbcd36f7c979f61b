"""Queries the brokers for facts about the cluster: nodes, quorum, features, partitions, disks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from kpybroker.client.client import LATEST, Client, CommandFailed, check
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.topics import METADATA_TOPIC, TopicPartition
from kpybroker.wire.rpc import (
    api_versions,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_quorum,
    list_offsets,
)
from kpybroker.wire.rpc.metadata import MetadataResponseTopic

T = TypeVar("T")

ROLES = "process.roles"
BROKER_ROLE, CONTROLLER_ROLE = "broker", "controller"
KPYBROKER, APACHE_KAFKA = "kpybroker", "Apache Kafka"
METADATA_VERSION = "metadata.version"
LEVELS_OF_RELEASES = {
    "3.3": range(1, 8),
    "3.4": range(8, 9),
    "3.5": range(9, 12),
    "3.6": range(12, 15),
    "3.7": range(15, 20),
    "3.8": range(20, 21),
    "3.9": range(21, 22),
    "4.0": range(22, 26),
    "4.1": range(26, 28),
    "4.2": range(28, 30),
    "4.3": range(30, 31),
}
"""Release of Apache Kafka -> the levels of metadata.version that are new in it."""
RELEASES = {level: release for release, levels in LEVELS_OF_RELEASES.items() for level in levels}
HTTP_HOST, HTTP_PORT, HTTP_TLS = "kpybroker.http.host", "kpybroker.http.port", "kpybroker.http.tls.listener"
ASKED_MAX = 10_000
"""The most partitions in one ListOffsets."""
TOPICS_ASKED = 100
"""The most topics in one DescribeConfigs."""


@dataclass(slots=True)
class LogDirUsage:
    """One log directory of a broker. Sizes are in bytes, -1 if unknown."""

    path: str
    used_bytes: int
    free_bytes: int
    total_bytes: int
    has_failed: bool


@dataclass(slots=True)
class NodeFacts:
    """A registered broker. A fenced broker serves no clients: it stopped, or the controller receives no heartbeats from
    it."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool
    kind: str | None = None
    """KPYBROKER or APACHE_KAFKA; None if the broker did not respond, or is neither."""
    release: str | None = None
    """The release of Apache Kafka to which the broker's highest metadata.version belongs, for example "4.3". None if
    the broker did not respond, or if the release is not in RELEASES. No API tells more of a version."""
    roles: list[str] | None = None
    """None if the broker did not respond."""
    leads: int = 0
    replicas: int = 0
    in_sync: int = 0
    """The number of its replicas that are in sync."""
    http: str | None = None
    disks: list[LogDirUsage] | None = None
    """None if the broker did not respond."""


@dataclass(slots=True)
class QuorumFacts:
    """The active controller and the voters. `behind`: the number of records that each voter lags behind."""

    leader: int
    epoch: int
    behind: dict[int, int]
    observers: list[int]
    addresses: dict[int, str]
    """Node id -> host:port of the listener for controllers, as far as the leader knows it."""


@dataclass(slots=True)
class PartitionFacts:
    """The number of partitions, and lists of the unhealthy ones."""

    topics: int = 0
    count: int = 0
    under_replicated: list[TopicPartition] = field(default_factory=list)
    offline: list[TopicPartition] = field(default_factory=list)
    """Partitions without a leader, or with a log that is offline at the leader (found by `add_offline_logs`)."""
    led: dict[int, list[TopicPartition]] = field(default_factory=dict)
    """The partitions of each leader, by node id."""


async def nodes(client: Client) -> list[NodeFacts]:
    """All registered brokers in order of their ids, with fenced ones if the broker returns them. Raises KafkaError,
    OSError."""
    response = await client.ask("DescribeCluster", describe_cluster.Request(include_fenced_brokers=True))
    check(response.error_code, response.error_message)
    client.learn(response.cluster_id, {row.broker_id: (row.host, row.port) for row in response.brokers})
    rows = sorted(response.brokers, key=lambda row: row.broker_id)
    return [NodeFacts(row.broker_id, row.host, row.port, row.rack, row.is_fenced) for row in rows]


async def quorum(client: Client) -> QuorumFacts:
    """The active controller and the voters. Raises KafkaError, OSError."""
    asked = describe_quorum.TopicData(topic_name=METADATA_TOPIC, partitions=[describe_quorum.PartitionData()])

    async def attempt() -> QuorumFacts:
        response = await client.ask("DescribeQuorum", describe_quorum.Request(topics=[asked]))
        check(response.error_code, response.error_message)
        row = response.topics[0].partitions[0]
        check(row.error_code, row.error_message)
        ends = {voter.replica_id: voter.log_end_offset for voter in row.current_voters}
        last = ends.get(row.leader_id, row.high_watermark)
        behind = {voter: last - end if end >= 0 else last for voter, end in sorted(ends.items())}
        observers = sorted(observer.replica_id for observer in row.observers)
        addresses = {
            node.node_id: f"{node.listeners[0].host}:{node.listeners[0].port}"
            for node in response.nodes
            if node.listeners
        }
        return QuorumFacts(row.leader_id, row.leader_epoch, behind, observers, addresses)

    return await client.patiently(attempt)


def controllers_of(nodes: Sequence[NodeFacts], quorum: QuorumFacts | None) -> dict[int, str | None]:
    """The nodes of the quorum that are not brokers, with their addresses. A client has no connection to them, so that
    their kind is unknown."""
    if quorum is None:
        return {}
    others = sorted({*quorum.behind, *quorum.observers} - {node.node_id for node in nodes})
    return {node_id: quorum.addresses.get(node_id) for node_id in others}


async def features(client: Client) -> dict[str, int]:
    """The finalized feature levels by name. Raises KafkaError, OSError."""
    told = await api_versions_of(client)
    return {row.name: row.max_version_level for row in sorted(told.finalized_features, key=lambda row: row.name)}


async def api_versions_of(client: Client, node: int | None = None) -> api_versions.Response:
    """The ApiVersions response of this broker, or of any. Raises KafkaError, OSError."""
    request = api_versions.Request(client_software_name="kpybroker-cli", client_software_version="1")
    response: api_versions.Response = await client.ask("ApiVersions", request, node=node)
    check(response.error_code)
    return response


def require_partition(topic: str, partition: int, known: Sequence[int]) -> None:
    """Raise CommandFailed unless the partition is among the known ones, which are in order."""
    if partition not in known:
        raise CommandFailed(f"{topic} has no partition {partition}: there are {known[0]} to {known[-1]}")


async def from_each_broker(client: Client, attempt: Callable[[int], Awaitable[list[T]]]) -> list[T]:
    """Call `attempt` with the id of each broker in turn, and concatenate the results. Raises KafkaError, OSError."""
    await client.metadata([])
    found: list[T] = []
    for node in sorted(client.brokers):
        found += await client.patiently(partial(attempt, node))
    return found


async def topics_with(client: Client, topics: Sequence[str], setting: str) -> set[str]:
    """The topics that have this setting, one of kpybroker's own. Raises CommandFailed, KafkaError."""
    found = set()
    for at in range(0, len(topics), TOPICS_ASKED):
        asked = [
            describe_configs.DescribeConfigsResource(
                resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=[setting]
            )
            for name in topics[at : at + TOPICS_ASKED]
        ]
        response = await client.ask("DescribeConfigs", describe_configs.Request(resources=asked))
        found |= {row.resource_name for row in response.results if any(each.value for each in row.configs)}
    return found


def count_partitions(topics: Iterable[MetadataResponseTopic], found: list[NodeFacts]) -> PartitionFacts:
    """Count topics, partitions, and the leaders and replicas on each node."""
    by_id = {node.node_id: node for node in found}
    facts = PartitionFacts()
    for topic in topics:
        facts.topics += 1
        for row in sorted(topic.partitions, key=lambda row: row.partition_index):
            place = (topic.name or "", row.partition_index)
            facts.count += 1
            if row.leader_id < 0 or row.error_code == ErrorCode.LEADER_NOT_AVAILABLE:
                facts.offline.append(place)
            if len(row.isr_nodes) < len(row.replica_nodes):
                facts.under_replicated.append(place)
            if row.leader_id in by_id:
                by_id[row.leader_id].leads += 1
                facts.led.setdefault(row.leader_id, []).append(place)
            for replica in row.replica_nodes:
                if replica in by_id:
                    by_id[replica].replicas += 1
                    by_id[replica].in_sync += replica in row.isr_nodes
    return facts


async def add_offline_logs(client: Client, node_id: int, facts: PartitionFacts) -> None:
    """Find the offline logs of a leader with ListOffsets, because metadata does not show that a single log failed.

    Raises KafkaError, OSError.
    """
    led = facts.led.get(node_id, [])
    for at in range(0, len(led), ASKED_MAX):
        topics: dict[str, list_offsets.ListOffsetsTopic] = {}
        for name, index in led[at : at + ASKED_MAX]:
            topic = topics.setdefault(name, list_offsets.ListOffsetsTopic(name=name, partitions=[]))
            topic.partitions.append(list_offsets.ListOffsetsPartition(partition_index=index, timestamp=LATEST))
        request = list_offsets.Request(replica_id=-1, timeout_ms=client.timeout_ms, topics=list(topics.values()))
        response = await client.ask("ListOffsets", request, node=node_id)
        facts.offline += [
            (topic.name, row.partition_index)
            for topic in response.topics
            for row in topic.partitions
            if row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        ]
    facts.offline.sort()


async def learn_of(client: Client, node: NodeFacts) -> None:
    """Query one broker for its disks, its HTTP address, its kind, its release and its roles. They stay None if it does
    not respond."""
    try:
        response = await client.ask("DescribeLogDirs", describe_log_dirs.Request(topics=None), node=node.node_id)
        check(response.error_code)
        node.disks = [_disk(row) for row in response.results]
        settings = await _settings_of(client, node.node_id)
        node.http = _http_in(settings)
        node.kind = KPYBROKER if HTTP_PORT in settings else APACHE_KAFKA if ROLES in settings else None
        node.roles = sorted(each.strip() for each in (settings.get(ROLES) or "").split(",") if each) or None
        told = await api_versions_of(client, node.node_id)
        levels = [row.max_version for row in told.supported_features if row.name == METADATA_VERSION]
        node.release = RELEASES.get(levels[0]) if levels else None
    except (KafkaError, OSError, MalformedFrame):
        return


def _disk(row: describe_log_dirs.DescribeLogDirsResult) -> LogDirUsage:
    used = sum(partition.partition_size for topic in row.topics for partition in topic.partitions)
    return LogDirUsage(row.log_dir, used, row.usable_bytes, row.total_bytes, bool(row.error_code))


async def _settings_of(client: Client, node_id: int) -> dict[str, str | None]:
    """The settings of a broker that tell something of it. Only kpybroker has those of its own, even unset."""
    resource = describe_configs.DescribeConfigsResource(
        resource_type=ResourceType.BROKER,
        resource_name=str(node_id),
        configuration_keys=[HTTP_HOST, HTTP_PORT, HTTP_TLS, ROLES],
    )
    response = await client.ask("DescribeConfigs", describe_configs.Request(resources=[resource]), node=node_id)
    return {setting.name: setting.value for row in response.results for setting in row.configs}


def _http_in(settings: Mapping[str, str | None]) -> str | None:
    """The address of /metrics: host:port, or https://host:port with TLS. None if /metrics is not served, or if the
    system picked the port."""
    host, port = settings.get(HTTP_HOST), settings.get(HTTP_PORT)
    scheme = "https://" if settings.get(HTTP_TLS) else ""
    return f"{scheme}{host}:{port}" if host and port and port != "0" else None
