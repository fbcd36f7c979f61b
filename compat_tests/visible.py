"""Collects all state of a broker or a cluster that a client can read, with single requests, so that two snapshots can
be compared.

    before = look(("127.0.0.1", 9092))
    ...
    assert look(address) == before

Transient state is left out: leaders, their epochs, and times of requests.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple, Self

from kpybroker.wire.api import by_name
from kpybroker.wire.records.batch import read_records, split
from kpybroker.wire.rpc import (
    api_versions,
    consumer_group_describe,
    describe_configs,
    describe_groups,
    describe_producers,
    describe_transactions,
    fetch,
    find_coordinator,
    list_config_resources,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_fetch,
    offset_for_leader_epoch,
)
from oracle.asking import Conversation

TIMEOUT_S = 30.0
FETCH_BYTES = 8 << 20
UNCOMMITTED, COMMITTED = 0, 1
LATEST, EARLIEST, NEWEST = -1, -2, -3
GROUP, TRANSACTION = 0, 1
TOPIC, BROKER, CLIENT_GROUP = 2, 4, 32
WITHOUT_NAME = ""
DYNAMIC = {1: "topic", 2: "broker", 3: "default", 8: "group"}
"""Sources of settings that were changed, by their numbers in DescribeConfigs."""
UNSTABLE_OFFSET_COMMIT = 88

Place = tuple[str, int]
Facts = dict[str, Any]


class Row(NamedTuple):
    """A partition in a Metadata response."""

    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]


class Eyes:
    """Connections to all nodes in a Metadata response; each request is sent to a node that can handle it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._talks = contextlib.ExitStack()
        self._first = self._meet(address)
        self._nodes: dict[int, Conversation] = {}
        self.see()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._talks.close()

    def _meet(self, address: tuple[str, int]) -> Conversation:
        return self._talks.enter_context(contextlib.closing(Conversation(address, TIMEOUT_S)))

    def see(self) -> None:
        """Refresh the nodes, topics and leaders."""
        request = metadata.Request(topics=None, allow_auto_topic_creation=False)
        self.told = self._first.ask("Metadata", 12, request, metadata.Response)
        for broker in self.told.brokers:
            if broker.node_id not in self._nodes:
                self._nodes[broker.node_id] = self._meet((broker.host, broker.port))
        self.topics = {topic.name: topic for topic in self.told.topics}
        self.ids = {name: topic.topic_id for name, topic in self.topics.items()}
        self.rows: dict[Place, Row] = {
            (topic.name, row.partition_index): Row(row.leader_id, row.leader_epoch, tuple(sorted(row.replica_nodes)))
            for topic in self.told.topics
            for row in topic.partitions
        }

    @property
    def nodes(self) -> list[int]:
        return sorted(self._nodes)

    def ask(self, name: str, request: Any, response: Any, node: int | None = None, version: int | None = None) -> Any:
        """Send a request in the highest version to this node, or to the first node if none is given."""
        talk = self._first if node is None else self._nodes[node]
        return talk.ask(name, by_name[name].max if version is None else version, request, response)

    def ask_leader(self, place: Place, name: str, request: Any, response: Any, version: int | None = None) -> Any:
        """Send a request to the leader of a partition."""
        return self.ask(name, request, response, self.rows[place].leader_id, version)

    def coordinator(self, key: str, kind: int = GROUP) -> int:
        """The coordinator of a group or a transactional id. Raises LookupError if there is none yet."""
        request = find_coordinator.Request(key_type=kind, coordinator_keys=[key])
        [told] = self.ask("FindCoordinator", request, find_coordinator.Response).coordinators
        if told.error_code:
            raise LookupError(f"{key} has no coordinator: error {told.error_code}")
        return int(told.node_id)


def look(address: tuple[str, int], without: tuple[str, ...] = ()) -> Facts:
    """All state that clients can read. without: names of topics, groups and transactional ids that are left out."""
    with Eyes(address) as eyes:
        places = [place for place in sorted(eyes.rows) if not place[0].startswith("__") and place[0] not in without]
        facts: Facts = {
            "cluster": eyes.told.cluster_id,
            "nodes": eyes.nodes,
            "features": _features(eyes),
            "topics": {name: (topic.topic_id, topic.is_internal) for name, topic in eyes.topics.items()},
            "replicas": {place: row.replicas for place, row in eyes.rows.items()},
        }
        facts |= {f"settings of {kind} {name!r}": found for (kind, name), found in _settings(eyes).items()}
        for place in places:
            facts |= {f"{place} {what}": fact for what, fact in partition(eyes, place).items()}
        return facts | _groups(eyes, without) | _transactions(eyes, without)


def difference(before: Facts, after: Facts) -> list[str]:
    """The differences between two snapshots, one line each; none if they are equal."""
    names = sorted(before.keys() | after.keys())
    return [
        f"{name}: {_short(before.get(name))} became {_short(after.get(name))}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _short(fact: Any, limit: int = 1500) -> str:
    text = repr(fact)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _features(eyes: Eyes) -> dict[str, int]:
    request = api_versions.Request(client_software_name="visible", client_software_version="1")
    told = eyes.ask("ApiVersions", request, api_versions.Response)
    return {one.name: one.max_version_level for one in told.finalized_features}


def _settings(eyes: Eyes) -> dict[tuple[int, str], dict[str, Any]]:
    """The changed settings of each resource, with their sources; for topics, all effective settings."""
    kinds = list_config_resources.Request(resource_types=[TOPIC, BROKER, CLIENT_GROUP])
    told = eyes.ask("ListConfigResources", kinds, list_config_resources.Response)
    resources = {(one.resource_type, one.resource_name) for one in told.config_resources}
    resources.add((BROKER, WITHOUT_NAME))
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for kind, name in sorted(resources):
        one = describe_configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        request = describe_configs.Request(resources=[one])
        node = int(name) if kind == BROKER and name else None
        [result] = eyes.ask("DescribeConfigs", request, describe_configs.Response, node).results
        assert result.error_code == 0, (kind, name, result.error_message)
        found[kind, name] = {
            config.name: (DYNAMIC.get(config.config_source, "-"), config.value)
            for config in result.configs
            if kind == TOPIC or config.config_source in DYNAMIC
        }
    return found


# ---- partitions


def partition(eyes: Eyes, place: Place) -> Facts:
    """A partition's offsets, records, producers and past epochs."""
    settled = {name: offset_of(eyes, place, *asked)[:2] for name, asked in _OFFSETS.items()}
    start, end = settled["start"][0], settled["end"][0]
    records, aborted = read(eyes, place, start, end)
    middle = sorted({record[2] for record in records})
    by_time = {at: offset_of(eyes, place, UNCOMMITTED, at) for at in middle[:: max(1, len(middle) // 5)]}
    return {
        "offsets": settled,
        "records": records,
        "aborted": aborted,
        "by time": by_time,
        "producers": producers(eyes, place),
        "epochs": _epochs(eyes, place, max((record[1] for record in records), default=0)),
    }


_OFFSETS = {
    "start": (UNCOMMITTED, EARLIEST),
    "end": (UNCOMMITTED, LATEST),
    "stable": (COMMITTED, LATEST),
    "newest": (UNCOMMITTED, NEWEST),
}


def offset_of(eyes: Eyes, place: Place, isolation: int, timestamp: int) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch) of ListOffsets."""
    asked = list_offsets.ListOffsetsPartition(partition_index=place[1], timestamp=timestamp)
    topic = list_offsets.ListOffsetsTopic(name=place[0], partitions=[asked])
    request = list_offsets.Request(replica_id=-1, isolation_level=isolation, topics=[topic], timeout_ms=9000)
    told = eyes.ask_leader(place, "ListOffsets", request, list_offsets.Response)
    [[row]] = [topic.partitions for topic in told.topics]
    assert row.error_code == 0, (place, row.error_code)
    return row.offset, row.timestamp, row.leader_epoch


Seen = tuple[int, int, int, bytes | None, bytes | None, tuple[Any, ...], str]
"""offset, leader epoch of its batch, timestamp, key, value, headers, kind of batch"""


def read(eyes: Eyes, place: Place, start: int, end: int) -> tuple[list[Seen], list[tuple[int, int]]]:
    """All records with their batch's fields, and the aborted transactions (producer id, first offset)."""
    found: list[Seen] = []
    aborted: set[tuple[int, int]] = set()
    offset = start
    while offset < end:
        wanted = fetch.FetchPartition(partition=place[1], fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
        topic = fetch.FetchTopic(topic_id=eyes.ids[place[0]], partitions=[wanted])
        committed = fetch.Request(
            replica_state=fetch.ReplicaState(), max_wait_ms=100, isolation_level=COMMITTED, topics=[topic]
        )
        for told in eyes.ask_leader(place, "Fetch", committed, fetch.Response).responses[0].partitions:
            aborted |= {(one.producer_id, one.first_offset) for one in told.aborted_transactions or ()}
        uncommitted = fetch.Request(replica_state=fetch.ReplicaState(), max_wait_ms=100, topics=[topic])
        [told] = eyes.ask_leader(place, "Fetch", uncommitted, fetch.Response).responses[0].partitions
        assert told.error_code == 0, (place, told.error_code)
        if not told.records:
            break
        for batch in split(told.records):
            kind = f"{batch.codec} {batch.producer_id} {batch.producer_epoch} {batch.base_sequence} "
            kind += f"{batch.is_transactional} {batch.is_control} {batch.log_append_time}"
            assert batch.crc_ok(), (place, batch.base_offset)
            for record in read_records(batch):
                if record.offset >= start:
                    facts = (record.timestamp, record.key, record.value, tuple(map(tuple, record.headers)), kind)
                    found.append((record.offset, batch.leader_epoch, *facts))
            offset = batch.next_offset
    return found, sorted(aborted)


def producers(eyes: Eyes, place: Place) -> dict[int, tuple[int, ...]]:
    """producer id -> epoch, last sequence, start of its open transaction"""
    topic = describe_producers.TopicRequest(name=place[0], partition_indexes=[place[1]])
    told = eyes.ask_leader(
        place, "DescribeProducers", describe_producers.Request(topics=[topic]), describe_producers.Response
    )
    return {
        one.producer_id: (one.producer_epoch, one.last_sequence, one.current_txn_start_offset)
        for one in told.topics[0].partitions[0].active_producers
    }


def _epochs(eyes: Eyes, place: Place, newest: int) -> dict[int, tuple[int, int]]:
    """The end of each epoch before the newest one with records: requested -> (epoch, end)."""
    found = {}
    for epoch in range(newest):
        asked = offset_for_leader_epoch.OffsetForLeaderPartition(partition=place[1], leader_epoch=epoch)
        topic = offset_for_leader_epoch.OffsetForLeaderTopic(topic=place[0], partitions=[asked])
        request = offset_for_leader_epoch.Request(replica_id=-1, topics=[topic])
        told = eyes.ask_leader(place, "OffsetForLeaderEpoch", request, offset_for_leader_epoch.Response)
        row = told.topics[0].partitions[0]
        found[epoch] = (row.leader_epoch, row.end_offset)
    return found


# ---- groups and transactions


def _groups(eyes: Eyes, without: tuple[str, ...]) -> Facts:
    facts: Facts = {}
    for node in eyes.nodes:
        for one in eyes.ask("ListGroups", list_groups.Request(), list_groups.Response, node).groups:
            if one.group_id in without:
                continue
            name = f"group {one.group_id}"
            facts[name] = (one.protocol_type, one.group_state, one.group_type)
            facts[f"{name} offsets"] = committed(eyes, one.group_id)
            describe = _consumer_group if one.group_type == "consumer" else _classic_group
            facts[f"{name} members"] = describe(eyes, one.group_id, node)
    return facts


def _classic_group(eyes: Eyes, group: str, node: int) -> Any:
    request = describe_groups.Request(groups=[group])
    [one] = eyes.ask("DescribeGroups", request, describe_groups.Response, node).groups
    members = sorted(
        (each.member_id, each.group_instance_id, each.client_id, each.member_metadata, each.member_assignment)
        for each in one.members
    )
    return one.group_state, one.protocol_type, one.protocol_data, members


def _consumer_group(eyes: Eyes, group: str, node: int) -> Any:
    request = consumer_group_describe.Request(group_ids=[group])
    [one] = eyes.ask("ConsumerGroupDescribe", request, consumer_group_describe.Response, node).groups
    members = sorted(
        (
            each.member_id,
            each.instance_id,
            each.client_id,
            tuple(each.subscribed_topic_names),
            each.subscribed_topic_regex,
            _parts(each.assignment),
            _parts(each.target_assignment),
            each.member_type,
        )
        for each in one.members
    )
    return one.group_state, one.assignor_name, members


def _parts(assignment: Any) -> list[Place]:
    return sorted((topic.topic_name, at) for topic in assignment.topic_partitions for at in topic.partitions)


Commit = tuple[int, int, str | None]
"""Offset, leader epoch, metadata."""


def committed(eyes: Eyes, group: str) -> dict[Place, Commit]:
    """All committed offsets of a group."""
    return _committed(eyes, group, None, stable=False)


def committed_at(eyes: Eyes, group: str, place: Place, *, stable: bool) -> Commit:
    """The committed offset; (-1, error, None) if it must be `stable` and a transaction is open."""
    topic = offset_fetch.OffsetFetchRequestTopics(name=place[0], partition_indexes=[place[1]])
    return _committed(eyes, group, [topic], stable=stable)[place]


def _committed(eyes: Eyes, group: str, topics: list[Any] | None, *, stable: bool) -> dict[Place, Commit]:
    asked = offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=topics)
    request = offset_fetch.Request(groups=[asked], require_stable=stable)
    told = eyes.ask("OffsetFetch", request, offset_fetch.Response, eyes.coordinator(group), version=9)
    assert told.groups[0].error_code == 0, (group, told.groups[0].error_code)
    return {
        (topic.name, row.partition_index): (row.committed_offset, row.committed_leader_epoch, row.metadata)
        if not row.error_code
        else (-1, row.error_code, None)
        for topic in told.groups[0].topics
        for row in topic.partitions
    }


def _transactions(eyes: Eyes, without: tuple[str, ...]) -> Facts:
    facts: Facts = {}
    for node in eyes.nodes:
        told = eyes.ask("ListTransactions", list_transactions.Request(), list_transactions.Response, node)
        for listed in told.transaction_states:
            name = listed.transactional_id
            if name not in without:
                facts[f"transaction {name}"] = transaction(eyes, name, node)
    return facts


def transaction(eyes: Eyes, name: str, node: int | None = None) -> Any:
    """State, producer id and epoch, timeout, start, partitions."""
    request = describe_transactions.Request(transactional_ids=[name])
    where = eyes.coordinator(name, TRANSACTION) if node is None else node
    [one] = eyes.ask("DescribeTransactions", request, describe_transactions.Response, where).transaction_states
    assert one.error_code == 0, (name, one.error_code)
    places = sorted((topic.topic, at) for topic in one.topics for at in topic.partitions)
    who = one.producer_id, one.producer_epoch, one.transaction_timeout_ms
    return one.transaction_state, *who, one.transaction_start_time_ms, places


def is_served(address: tuple[str, int], facts: Facts) -> bool:
    """Whether every partition has a leader that responds, and every group and transactional id a coordinator that
    responds."""
    with Eyes(address) as eyes:
        groups = [name.split(" ")[1] for name in facts if name.startswith("group ") and name.count(" ") == 1]
        ids = [name.split(" ")[1] for name in facts if name.startswith("transaction ")]
        try:
            for place in eyes.rows:
                offset_of(eyes, place, COMMITTED, LATEST)
            for group in groups:
                committed(eyes, group)
            for name in ids:
                transaction(eyes, name)
        except (AssertionError, LookupError, KeyError):
            return False
    return True
