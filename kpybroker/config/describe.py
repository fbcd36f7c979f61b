"""Describes settings for DescribeConfigs and CreateTopics: value, source and synonyms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from kpybroker.config.broker_config import BrokerConfig
from kpybroker.config.broker_keys import BROKER_KEYS, BROKER_SYNONYMS, CHANGEABLE_KEYS
from kpybroker.config.effect import without_prefix
from kpybroker.config.key import ConfigKey, Mode
from kpybroker.config.partition_keys import EMPTY, PARTITION_KEYS
from kpybroker.config.topic_keys import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS, TOPIC_SYNONYMS
from kpybroker.config.view_keys import VIEW_KEYS, VIEW_OF

UNKNOWN_KIND = 0
OWN_PREFIX = "kpybroker."
KEPT_MAX = 1000


class Source(IntEnum):
    """The source of a value, with Kafka's codes (DescribeConfigs v1+)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class Synonym(NamedTuple):
    """A setting that provides the value, or would if the stronger ones were not set."""

    name: str
    value: str | None
    source: Source


class Described(NamedTuple):
    """One setting in the form in which clients see it. `value` is None if there is none, or if it is secret."""

    name: str
    value: str | None
    source: Source
    read_only: bool = False
    sensitive: bool = False
    kind: int = UNKNOWN_KIND
    synonyms: tuple[Synonym, ...] = ()
    key: ConfigKey | None = None

    @property
    def doc(self) -> str | None:
        """What the setting is for. Few requests ask for it, and only they read the file with the sentences."""
        from kpybroker.config.documentation import documentation

        return None if self.key is None else documentation(self.key)


class BrokerLayers(NamedTuple):
    """The settings of a broker in layers: its own dynamic settings, the cluster's dynamic settings, and the file."""

    config: BrokerConfig
    dynamic_broker: Mapping[str, str]
    dynamic_default: Mapping[str, str]

    def synonyms(self, name: str, names: Iterable[str]) -> list[Synonym]:
        """The values of the settings in `names`, beginning with `name` (Kafka omits the settings before it)."""
        layers = (
            (Source.DYNAMIC_BROKER_CONFIG, self.dynamic_broker),
            (Source.DYNAMIC_DEFAULT_BROKER_CONFIG, self.dynamic_default),
            (Source.STATIC_BROKER_CONFIG, self.config.static),
        )
        found = [
            Synonym(synonym, None if _sensitive(synonym) else layer[synonym], source)
            for source, layer in layers
            for synonym in names
            if synonym in layer
        ]
        for synonym in names:
            key = BROKER_KEYS.get(synonym)
            if key is not None and key.default is not None:
                found.append(Synonym(synonym, None if key.sensitive else key.default, Source.DEFAULT_CONFIG))
        first = next((at for at, synonym in enumerate(found) if synonym.name == name), len(found))
        return found[first:]


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> Sequence[Described]:
    """Every setting of a topic with these overrides, by name. Cached, because many topics have the same overrides."""
    kept = config.described_topics.get(key := frozenset(overrides.items()))
    if kept is None:
        kept = _describe_topic(BrokerLayers(config, config.dynamic_broker, config.dynamic_default), overrides)
        if len(config.described_topics) < KEPT_MAX:
            config.described_topics[key] = kept
    return kept


def _describe_topic(layers: BrokerLayers, overrides: Mapping[str, str]) -> Sequence[Described]:
    entries = []
    for key in _shown(TOPIC_KEYS, layers.config):
        if key.name.startswith(OWN_PREFIX) and key.name not in overrides:
            continue  # Kafka's tools list all settings of a topic
        names = [name for name, _ in TOPIC_SYNONYMS.get(key.name, ())]
        broker = BROKER_SYNONYMS.get(names[0], (names[0],)) if names else ()
        synonyms = layers.synonyms(names[0], broker) if names else []
        if key.name in overrides:
            synonyms.insert(0, Synonym(key.name, overrides[key.name], Source.DYNAMIC_TOPIC_CONFIG))
        value = overrides.get(key.name, layers.config.topic_default(key.name))
        source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
        entries.append(_entry(key, value, source, synonyms, read_only=False))
    for name, key in (*VIEW_KEYS.items(), *PARTITION_KEYS.items()):
        if name in overrides:
            synonyms = [Synonym(name, overrides[name], Source.DYNAMIC_TOPIC_CONFIG)]
            read_only = name in (VIEW_OF, EMPTY)
            entries.append(_entry(key, overrides[name], synonyms[0].source, synonyms, read_only=read_only))
    return entries


def describe_broker(layers: BrokerLayers) -> list[Described]:
    """Every setting of a broker, including unknown ones, by name."""
    known = _shown(BROKER_KEYS, layers.config)
    entries = [_broker_entry(layers, key) for key in known]
    others = {
        name: None
        for layer in (layers.dynamic_broker, layers.dynamic_default)
        for name in layer
        if name not in BROKER_KEYS
    }
    entries.extend(_unlisted(layers, name) for name in others)
    return entries


def _broker_entry(layers: BrokerLayers, key: ConfigKey) -> Described:
    synonyms = layers.synonyms(key.name, BROKER_SYNONYMS.get(key.name, (key.name,)))
    if key.name == "broker.id":
        # Kafka also shows the node's id under its old name.
        node_id = str(layers.config.node_id)
        synonyms = [Synonym(key.name, node_id, Source.STATIC_BROKER_CONFIG), *synonyms[-1:]]
    value = synonyms[0].value if synonyms else None
    source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
    return _entry(key, value, source, synonyms, read_only=key.mode is Mode.READ_ONLY)


def _unlisted(layers: BrokerLayers, name: str) -> Described:
    """A setting of one listener, or an unknown one. The value of an unknown setting is not shown, because it may be a
    secret of a plug-in."""
    key = CHANGEABLE_KEYS.get(without_prefix(name))
    names = dict.fromkeys((name,) if key is None else (name, key.name))
    synonyms = layers.synonyms(name, names)
    if key is None:
        return Described(name, None, synonyms[0].source, True, True, synonyms=tuple(synonyms))
    return _entry(key, synonyms[0].value, synonyms[0].source, synonyms, read_only=False, name=name)


def describe_default_broker(layers: BrokerLayers) -> list[Described]:
    """Only the settings that were set for the whole cluster."""
    entries = []
    for name, value in layers.dynamic_default.items():
        source = Source.DYNAMIC_DEFAULT_BROKER_CONFIG
        key = CHANGEABLE_KEYS.get(without_prefix(name))
        shown = None if _sensitive(name) else value
        synonyms = [Synonym(name, shown, source)]
        if key is None:
            entries.append(Described(name, None, source, True, True, synonyms=tuple(synonyms)))
        else:
            read_only = key.mode is Mode.READ_ONLY
            entries.append(_entry(key, shown, source, synonyms, read_only=read_only, name=name))
    return entries


def describe_group(layers: BrokerLayers, overrides: Mapping[str, str]) -> list[Described]:
    """Every setting of a group (KIP-848), by name."""
    entries = []
    for key in _shown(GROUP_KEYS, layers.config):
        broker_name = f"group.{key.name}"
        if broker_name in BROKER_KEYS:
            synonyms = layers.synonyms(broker_name, (broker_name,))
        else:
            synonyms = [Synonym(key.name, key.default, Source.DEFAULT_CONFIG)]
        if key.name in overrides:
            synonyms.insert(0, Synonym(key.name, overrides[key.name], Source.GROUP_CONFIG))
        entries.append(_entry(key, synonyms[0].value, synonyms[0].source, synonyms, read_only=False))
    return entries


def describe_client_metrics(overrides: Mapping[str, str]) -> list[Described]:
    """Every setting of a client metrics subscription (KIP-714), by name."""
    entries = []
    for key in CLIENT_METRICS_KEYS.values():
        if key.name in overrides:
            synonyms = [Synonym(key.name, overrides[key.name], Source.CLIENT_METRICS_CONFIG)]
            entries.append(_entry(key, overrides[key.name], synonyms[0].source, synonyms, read_only=False))
        else:
            entries.append(_entry(key, key.default, Source.DEFAULT_CONFIG, [], read_only=False))
    return entries


def _shown(keys: Mapping[str, ConfigKey], config: BrokerConfig) -> list[ConfigKey]:
    unstable = config.unstable_feature_versions_enable
    return [key for key in keys.values() if not key.internal and (unstable or not key.unstable)]


def _entry(
    key: ConfigKey,
    value: str | None,
    source: Source,
    synonyms: Iterable[Synonym],
    *,
    read_only: bool,
    name: str | None = None,
) -> Described:
    shown = None if key.sensitive else value
    return Described(name or key.name, shown, source, read_only, key.sensitive, key.kind, tuple(synonyms), key)


def _sensitive(name: str) -> bool:
    key = CHANGEABLE_KEYS.get(without_prefix(name))
    return key is None or key.sensitive
