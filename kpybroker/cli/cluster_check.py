"""Asks a running cluster, of kpybroker or Apache Kafka, what this version of kpybroker would not serve of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kpybroker.cli import cluster_facts, group_facts, message_formats
from kpybroker.cli.cluster_facts import NodeFacts, QuorumFacts
from kpybroker.cli.message_formats import SERVED_FORMAT, LogFormats
from kpybroker.client.client import Client, NodeOutOfReach, check
from kpybroker.config import parse_config
from kpybroker.config.effect import KEYS, key_of
from kpybroker.config.key import Effect
from kpybroker.config.properties import REMOVED, did_you_mean, is_of_others
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.errors import ConfigError, KafkaError
from kpybroker.topics import TopicPartition
from kpybroker.wire.api import API
from kpybroker.wire.rpc import api_versions, describe_configs

PREVENTS, MISSING, IGNORED, UNKNOWN = "prevents", "missing", "ignored", "unknown"
LEVELS = {
    PREVENTS: "a broker of kpybroker cannot serve this cluster, or not this topic, as it is",
    MISSING: "clients that need it are refused",
    IGNORED: "the setting is accepted and has no effect",
    UNKNOWN: "this cannot be checked from outside",
}
OF_TOPIC, OF_FILE = 1, 4
"""Sources of settings: a topic, and the properties file of a broker."""
IN_METADATA = {2, 3}
"""The sources of settings of a broker, or of all, that are stored in the metadata."""
GROUP_TYPES = ("classic", "consumer", "share", "streams")
AT_ONCE = 100
"""The number of topics in one DescribeConfigs."""
NAMED_MAX = 5
"""The number of partitions that a finding names."""
CANNOT_KNOW = (
    "not checked: which APIs the clients of the cluster use, because no API tells it; docs/protocol.md lists what "
    "kpybroker serves, and what it does not support"
)


class Finding(NamedTuple):
    """Something that would not be as it is now."""

    level: str
    where: str
    what: str
    why: str


class Checked(NamedTuple):
    """The result of a check, and how much was looked at."""

    findings: list[Finding]
    brokers: int
    topics: int
    groups: int

    @property
    def is_prevented(self) -> bool:
        """Whether kpybroker could not serve the cluster as it is."""
        return any(each.level == PREVENTS for each in self.findings)


async def look(client: Client, tell: Callable[[int, int], None] = lambda done, total: None) -> Checked:
    """Look at the features, the APIs, the settings of all brokers and topics, the formats of the logs, and the groups.

    `tell` is called with the number of logs that have been looked at, and of all. Raises KafkaError, OSError,
    CommandFailed.
    """
    told = await cluster_facts.api_versions_of(client)
    findings = [*of_features(told), *of_apis(told)]
    nodes = await cluster_facts.nodes(client)
    for node in nodes:
        try:
            rows = await _settings(client, ResourceType.BROKER, [str(node.node_id)], node.node_id)
        except NodeOutOfReach as error:
            findings.append(Finding(UNKNOWN, f"broker {node.node_id}", "its settings", str(error)))
        else:
            findings += of_settings(ResourceType.BROKER, rows)
    try:
        findings += of_controllers(nodes, await cluster_facts.quorum(client))
    except (KafkaError, NodeOutOfReach) as error:
        findings.append(Finding(UNKNOWN, "cluster", "its controllers", str(error)))
    described = await client.metadata()
    topics = sorted(described)
    for start in range(0, len(topics), AT_ONCE):
        rows = await _settings(client, ResourceType.TOPIC, topics[start : start + AT_ONCE], None)
        findings += of_settings(ResourceType.TOPIC, rows)
    findings += of_formats(await message_formats.look(client, described.values(), tell))
    try:
        groups = await group_facts.list_all(client)
    except NodeOutOfReach as error:  # the groups of this coordinator may move to another broker
        groups = []
        findings.append(Finding(UNKNOWN, "cluster", "its groups", str(error)))
    findings += [
        Finding(PREVENTS, f"group {row.group_id}", f"type {row.group_type}", "groups of this type are not served")
        for row in groups
        if row.group_type and row.group_type.lower() not in GROUP_TYPES
    ]
    return Checked(_once(findings), len(nodes), len(topics), len(groups))


def of_controllers(nodes: Sequence[NodeFacts], quorum: QuorumFacts) -> Iterator[Finding]:
    """The controllers that are not brokers."""
    for node_id in cluster_facts.controllers_of(nodes, quorum):
        why = "no client connects to it; compare its properties file with docs/configuration.md"
        yield Finding(UNKNOWN, f"controller {node_id}", "its settings", why)


def of_formats(formats: LogFormats) -> Iterator[Finding]:
    """The logs that have messages of a format that is not served here, and those that could not be looked at."""
    old: dict[int, list[TopicPartition]] = {}
    for place, found in formats.oldest.items():
        if found != SERVED_FORMAT:
            old.setdefault(found, []).append(place)
    for found, places in sorted(old.items()):
        why = (
            f"only format {SERVED_FORMAT} is served here: wait until Apache Kafka's retention has deleted these "
            "messages or its compaction has rewritten them, or copy the topic to a new one with a client"
        )
        yield Finding(PREVENTS, _partitions(places), f"messages of format {found}", why)
    unknown: dict[str, list[TopicPartition]] = {}
    for place, why in formats.unknown.items():
        unknown.setdefault(why, []).append(place)
    for why, places in unknown.items():
        yield Finding(UNKNOWN, _partitions(places), "formats of its messages", why)


def _partitions(places: list[TopicPartition]) -> str:
    """The first few partitions, and the number of the others."""
    named = ", ".join(f"{topic}-{index}" for topic, index in sorted(places)[:NAMED_MAX])
    more = f" and {len(places) - NAMED_MAX} more" if len(places) > NAMED_MAX else ""
    return f"partition{'s' * (len(places) > 1)} {named}{more}"


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, with what is the same on several brokers in one row; the serious ones first."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for each in findings:
        places.setdefault((each.level, each.what, each.why), []).append(each.where)
    order = list(LEVELS)
    merged = [Finding(level, _joined(where), what, why) for (level, what, why), where in places.items()]
    return sorted(merged, key=lambda each: order.index(each.level))


def _joined(places: list[str]) -> str:
    kind = places[0].split(" ", 1)[0]
    if len(places) == 1 or any(not place.startswith(f"{kind} ") for place in places):
        return ", ".join(places)
    return f"{kind}s {', '.join(place.split(' ', 1)[1] for place in places)}"


def of_features(told: api_versions.Response) -> Iterator[Finding]:
    """The finalized features whose level is not served here."""
    for row in told.finalized_features:
        low, high = SUPPORTED_FEATURES.get(row.name, (0, 0))
        if not low <= row.max_version_level <= high:
            served = f"level {low} to {high}" if row.name in SUPPORTED_FEATURES else "no level of it"
            yield Finding(PREVENTS, "cluster", f"{row.name}={row.max_version_level}", f"this version serves {served}")


def of_apis(told: api_versions.Response) -> Iterator[Finding]:
    """The APIs of the cluster, and their versions, that are not served here."""
    served = {row.key: row for row in API}
    for row in told.api_keys:
        api = served.get(row.api_key)
        if api is None:
            yield Finding(MISSING, "cluster", f"API {row.api_key}", "this version does not serve it")
            continue
        low, high = api.advertised
        if row.min_version < low or row.max_version > high:
            asked = f"{api.name} versions {row.min_version} to {row.max_version}"
            yield Finding(MISSING, "cluster", asked, f"this version serves {low} to {high}")


async def _settings(
    client: Client, kind: int, names: list[str], node: int | None
) -> list[describe_configs.DescribeConfigsResult]:
    asked = [
        describe_configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for name in names
    ]
    response = await client.ask("DescribeConfigs", describe_configs.Request(resources=asked), node=node)
    for row in response.results:
        check(row.error_code, row.error_message)
    return list(response.results)


def of_settings(kind: int, rows: Iterable[describe_configs.DescribeConfigsResult]) -> Iterator[Finding]:
    """The settings of brokers or topics that were set there, and would be refused or have no effect here."""
    for resource in rows:
        own = {OF_TOPIC} if kind == ResourceType.TOPIC else {OF_FILE, *IN_METADATA}
        settings = [row for row in resource.configs if row.config_source in own]
        where = f"{'topic' if kind == ResourceType.TOPIC else 'broker'} {resource.resource_name}"
        found = [each for row in settings if (each := _of_setting(kind, where, row)) is not None]
        yield from found
        is_own = any(row.name == cluster_facts.HTTP_PORT for row in resource.configs)
        # a broker of kpybroker has started with its settings, and does not list those that have secrets
        if kind == ResourceType.BROKER and not is_own and all(each.level != PREVENTS for each in found):
            yield from _of_all(where, {row.name: row.value for row in settings if row.config_source == OF_FILE})


def _of_setting(kind: int, where: str, row: describe_configs.DescribeConfigsResourceResult) -> Finding | None:
    found = _of_value(kind, where, row)
    if found is not None and found.level == PREVENTS and row.config_source in IN_METADATA:
        why = f"{found.why}; it is stored in the metadata, where it prevents no start: brokers log it, and ignore it"
        return found._replace(level=IGNORED, why=why)
    return found


def _of_value(kind: int, where: str, row: describe_configs.DescribeConfigsResourceResult) -> Finding | None:
    """What a properties file with this setting, or a topic, would meet."""
    key, value = key_of(kind, row.name), row.value
    if key is None:
        if kind == ResourceType.BROKER and is_of_others(row.name):
            return None
        if kind == ResourceType.BROKER and row.name in REMOVED:
            return Finding(PREVENTS, where, row.name, f"there is no such setting here: {REMOVED[row.name]}; remove it")
        hint = did_you_mean(row.name, KEYS[kind]) or "; remove it"
        return Finding(PREVENTS, where, row.name, f"there is no such setting here{hint}")
    if value is None:
        secret = "its value is secret; give it to the new broker"
        return Finding(UNKNOWN, where, row.name, secret) if row.is_sensitive else None
    shown = f"{row.name}={value}"
    try:
        key.parse(value)
    except ConfigError as error:
        return Finding(PREVENTS, where, shown, str(error))
    if key.effect is Effect.REFUSED and key.asks(value):
        return Finding(PREVENTS, where, shown, key.doc or "")
    if key.effect is Effect.HARMLESS and key.asks(value):
        return Finding(IGNORED, where, shown, key.doc or "it has no effect here")
    return None


def _of_all(where: str, settings: Mapping[str, str | None]) -> Iterator[Finding]:
    """What a broker with these settings would say at its start, beyond what each setting tells by itself."""
    known = {name: value for name, value in settings.items() if value is not None}
    try:
        parse_config(known)
    except ConfigError as error:
        level = PREVENTS if len(known) == len(settings) else UNKNOWN  # a secret that is missing may be the cause
        yield Finding(level, where, "all settings", str(error).removeprefix("configuration: "))
