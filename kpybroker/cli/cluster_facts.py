"""What the brokers tell about the cluster: nodes, quorum, features, partitions, disks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kpybroker.client.client import LATEST, Client, check
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

BROKER_RESOURCE = 4
HTTP_HOST, HTTP_PORT = "kpybroker.http.host", "kpybroker.http.port"
ASKED_MAX = 10_000
"""Partitions of one ListOffsets."""


@dataclass(slots=True)
class Disk:
    """One log directory of a broker; sizes in bytes, -1 where the broker does not know."""

    path: str
    used_bytes: int
    free_bytes: int
    total_bytes: int
    has_failed: bool


@dataclass(slots=True)
class Node:
    """A registered broker. A fenced one serves nobody: it stopped, or the controller does not hear from it."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool
    leads: int = 0
    replicas: int = 0
    http: str | None = None
    disks: list[Disk] | None = None
    """None where the broker did not answer."""


@dataclass(slots=True)
class Quorum:
    """The controllers: who is active, and who votes. `behind`: by voter, the records that it lacks."""

    leader: int
    epoch: int
    behind: dict[int, int]
    observers: list[int]


@dataclass(slots=True)
class Partitions:
    """How many there are, and those that lack something."""

    topics: int = 0
    count: int = 0
    under_replicated: list[TopicPartition] = field(default_factory=list)
    offline: list[TopicPartition] = field(default_factory=list)
    """Without a leader, or `add_offline_logs` found that the leader cannot read or write them."""
    led: dict[int, list[TopicPartition]] = field(default_factory=dict)
    """By leader."""


async def nodes(client: Client) -> list[Node]:
    """All registered brokers by id, fenced ones too where the broker tells of them. Raises KafkaError, OSError."""
    told = await client.ask("DescribeCluster", describe_cluster.Request(include_fenced_brokers=True))
    check(told.error_code, told.error_message)
    client.cluster_id = told.cluster_id
    client.brokers |= {row.broker_id: (row.host, row.port) for row in told.brokers}
    rows = sorted(told.brokers, key=lambda row: row.broker_id)
    return [Node(row.broker_id, row.host, row.port, row.rack, row.is_fenced) for row in rows]


async def quorum(client: Client) -> Quorum:
    """Raises KafkaError, OSError."""
    asked = describe_quorum.TopicData(topic_name=METADATA_TOPIC, partitions=[describe_quorum.PartitionData()])

    async def attempt() -> Quorum:
        told = await client.ask("DescribeQuorum", describe_quorum.Request(topics=[asked]))
        check(told.error_code, told.error_message)
        row = told.topics[0].partitions[0]
        check(row.error_code, row.error_message)
        ends = {voter.replica_id: voter.log_end_offset for voter in row.current_voters}
        last = ends.get(row.leader_id, row.high_watermark)
        behind = {voter: last - end if end >= 0 else last for voter, end in sorted(ends.items())}
        observers = sorted(observer.replica_id for observer in row.observers)
        return Quorum(row.leader_id, row.leader_epoch, behind, observers)

    return await client.patiently(attempt)


async def features(client: Client) -> dict[str, int]:
    """The finalized feature levels by name. Raises KafkaError, OSError."""
    request = api_versions.Request(client_software_name="kpybroker-cli", client_software_version="1")
    told = await client.ask("ApiVersions", request)
    check(told.error_code)
    return {row.name: row.max_version_level for row in sorted(told.finalized_features, key=lambda row: row.name)}


def count_partitions(topics: Iterable[MetadataResponseTopic], found: list[Node]) -> Partitions:
    """Sum up topics, and count for each node what it leads and holds."""
    by_id = {node.node_id: node for node in found}
    facts = Partitions()
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
    return facts


async def add_offline_logs(client: Client, node_id: int, facts: Partitions) -> None:
    """Ask a leader which of its logs are offline: metadata does not tell of a log that failed by itself.

    Raises KafkaError, OSError.
    """
    led = facts.led.get(node_id, [])
    for at in range(0, len(led), ASKED_MAX):
        topics: dict[str, list_offsets.ListOffsetsTopic] = {}
        for name, index in led[at : at + ASKED_MAX]:
            topic = topics.setdefault(name, list_offsets.ListOffsetsTopic(name=name, partitions=[]))
            topic.partitions.append(list_offsets.ListOffsetsPartition(partition_index=index, timestamp=LATEST))
        request = list_offsets.Request(replica_id=-1, timeout_ms=client.timeout_ms, topics=list(topics.values()))
        told = await client.ask("ListOffsets", request, node=node_id)
        facts.offline += [
            (topic.name, row.partition_index)
            for topic in told.topics
            for row in topic.partitions
            if row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        ]
    facts.offline.sort()


async def learn_of(client: Client, node: Node) -> None:
    """Ask one broker for its disks and its HTTP address; what it does not answer stays None."""
    try:
        told = await client.ask("DescribeLogDirs", describe_log_dirs.Request(topics=None), node=node.node_id)
        check(told.error_code)
        node.disks = [_disk(row) for row in told.results]
        node.http = await _http_of(client, node.node_id)
    except (KafkaError, OSError, MalformedFrame):
        return


def _disk(row: describe_log_dirs.DescribeLogDirsResult) -> Disk:
    used = sum(partition.partition_size for topic in row.topics for partition in topic.partitions)
    return Disk(row.log_dir, used, row.usable_bytes, row.total_bytes, bool(row.error_code))


async def _http_of(client: Client, node_id: int) -> str | None:
    """Where /metrics is served; None for nowhere, or where the system has picked the port."""
    resource = describe_configs.DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(node_id), configuration_keys=[HTTP_HOST, HTTP_PORT]
    )
    told = await client.ask("DescribeConfigs", describe_configs.Request(resources=[resource]), node=node_id)
    found = {setting.name: setting.value for row in told.results for setting in row.configs}
    host, port = found.get(HTTP_HOST), found.get(HTTP_PORT)
    return f"{host}:{port}" if host and port and port != "0" else None
