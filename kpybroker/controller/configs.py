"""Decides AlterConfigs and IncrementalAlterConfigs: checks the settings of each type of resource, and creates the
records of a change."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.config.broker_keys import BROKER_KEYS, CHANGEABLE_KEYS
from kpybroker.config.dynamic import usable, why_unusable
from kpybroker.config.effect import key_of
from kpybroker.config.key import ConfigKey, Kind, Mode
from kpybroker.config.partition_keys import PARTITION_KEYS
from kpybroker.config.properties import did_you_mean
from kpybroker.config.resource_type import ResourceType
from kpybroker.config.security_keys import AUTHORIZER_KEYS
from kpybroker.config.topic_keys import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS
from kpybroker.config.view_keys import VIEW_KEYS
from kpybroker.controller import delivery_logs, retirements
from kpybroker.controller.commands import (
    AlterConfigs,
    AlterOp,
    ChangeConfigs,
    ConfigResult,
    IncrementalAlterConfigs,
    ReplaceConfigs,
)
from kpybroker.controller.config_conflicts import check_together
from kpybroker.controller.doors import check_doors
from kpybroker.controller.internal_topics import POLICY, check_policy
from kpybroker.controller.names import invalid_topic_name
from kpybroker.controller.state import ControllerState
from kpybroker.controller.views import changed
from kpybroker.errors import ConfigError, ErrorCode, KafkaError
from kpybroker.metadata.image import ELR_FEATURE
from kpybroker.wire.stored import metadata as stored

SETTINGS_PER_RESOURCE_MAX = 1000
NAME_LENGTH_MAX = 1024
VALUE_LENGTH_MAX = 32767
MIN_ISR = "min.insync.replicas"
PATTERNS_LENGTH_MAX = 4096
"""The most characters in the client matching patterns of one subscription. Compiling that many takes about 10 ms."""
INTERVAL_MS = range(100, 3_600_001)
MATCH_FIELDS = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
NO_SETTINGS: Mapping[str, str] = {}
LISTS: Mapping[int, Mapping[str, ConfigKey]] = {
    ResourceType.TOPIC: {**TOPIC_KEYS, **PARTITION_KEYS},
    ResourceType.BROKER: CHANGEABLE_KEYS,
}
"""The settings among which lists can be appended to; as in Apache Kafka, those of client metrics are no lists here."""
NODE_ID = re.compile(r"-?[0-9]{1,10}", re.ASCII)
PER_LISTENER_ONLY = re.compile(r"ssl\.(key|keystore|truststore)\.")

Change = Callable[[Mapping[str, str]], dict[str, str]]


def alter_configs(
    state: ControllerState, config: BrokerConfig, random: Random, command: AlterConfigs
) -> tuple[list[Any], list[ConfigResult]]:
    """Decide on an AlterConfigs: afterwards, the resource has only the given settings."""

    def change_of(resource: ReplaceConfigs) -> Change:
        return lambda _: _replaced(resource)

    return _alter(state, config, random, command, change_of)


def incremental_alter_configs(
    state: ControllerState, config: BrokerConfig, random: Random, command: IncrementalAlterConfigs
) -> tuple[list[Any], list[ConfigResult]]:
    """Decide on an IncrementalAlterConfigs: each change is applied to the current settings."""

    def change_of(resource: ChangeConfigs) -> Change:
        return lambda current: _changed(resource, current)

    return _alter(state, config, random, command, change_of)


def check_broker_change(
    config: BrokerConfig, current: Mapping[str, str], change: ReplaceConfigs | ChangeConfigs
) -> None:
    """Check a change of settings of this broker, or of all brokers, before it is forwarded: a controller of Apache
    Kafka leaves that to the broker that the client has asked. `current` has the settings before the change. Raises
    INVALID_REQUEST, INVALID_CONFIG."""
    wanted = _replaced(change) if isinstance(change, ReplaceConfigs) else _changed(change, current)
    _check_settings(config, ResourceType.BROKER, change.resource_name, wanted, current)


def _alter(
    state: ControllerState,
    config: BrokerConfig,
    random: Random,
    command: AlterConfigs | IncrementalAlterConfigs,
    change_of: Any,
) -> tuple[list[Any], list[ConfigResult]]:
    resources, host = command.resources, command.host
    asked = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    records: list[Any] = []
    results = []
    for resource in resources:
        kind, name = resource.resource_type, resource.resource_name
        try:
            if asked[kind, name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            _check_resource(state, kind, name)
            if kind == ResourceType.TOPIC and name not in state.topics:
                view = state.views[name]
                records.append(changed(view, change_of(resource)(view.settings)).record())
                results.append(ConfigResult(kind, name))
                continue
            current = state.config(kind, name)
            if kind == ResourceType.TOPIC:
                wanted = change_of(resource)({**current, **retirements.settings_of(state, name)})
                if isinstance(resource, ReplaceConfigs):  # partitions come back only if that is asked for
                    wanted = {**retirements.settings_of(state, name), **wanted}
                resized = retirements.changed(state, config, name, wanted)
                wanted = retirements.other_settings(wanted)
            else:
                wanted, resized = change_of(resource)(current), []
            if state.features.get(ELR_FEATURE, 0):
                _check_min_isr(resource, current, wanted)
            _check_settings(config, kind, name, wanted, current)
            if kind == ResourceType.TOPIC and wanted.get(POLICY) != current.get(POLICY):
                check_policy(name, wanted.get(POLICY, config.topic_default(POLICY)))
            if kind == ResourceType.TOPIC:
                delivery_logs.check_scheduled(name, wanted)
                delivery_logs.check_change(name, current, wanted)
            if kind == ResourceType.BROKER:
                check_doors(state, config, name, wanted, host)
            changes = _difference(kind, name, current, wanted, _named(resource))
            records.extend((*changes, *resized))
            if kind == ResourceType.TOPIC:
                records.extend(_delivery_log(state, config, random, name, wanted))
            is_brokers_own = kind == ResourceType.BROKER and name
            is_other_min_isr = current.get(MIN_ISR) != wanted.get(MIN_ISR)
            if state.features.get(ELR_FEATURE, 0) and is_other_min_isr and not is_brokers_own:
                # the replicas became eligible under the old value
                records.append(stored.ClearElrRecord(topic_name=name))
            results.append(ConfigResult(kind, name))
        except KafkaError as refusal:
            results.append(ConfigResult(kind, name, refusal.code, refusal.message))
    return [] if command.validate_only else records, results


def _delivery_log(
    state: ControllerState, config: BrokerConfig, random: Random, name: str, wanted: Mapping[str, str]
) -> list[Any]:
    """The records that create the delivery log of a topic with these settings, or with which it follows them. Raises
    POLICY_VIOLATION."""
    replicas = delivery_logs.replicas_of(state, name)
    records = delivery_logs.created(state, random, name, wanted, replicas)
    if records and state.partition_count + len(replicas) > config.max_partitions:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The cluster may have at most {config.max_partitions} partitions (kpybroker.max.partitions).",
        )
    return records or delivery_logs.followed(state, name, wanted)


def _check_min_isr(resource: Any, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """With eligible leader replicas, the whole cluster has one min.insync.replicas, which topics may override
    (KIP-966). So it cannot be set for a single broker, or removed for the cluster. Raises INVALID_CONFIG."""
    if resource.resource_type != ResourceType.BROKER:
        return
    if resource.resource_name:
        # such a value was set before the feature was enabled, or by another controller
        is_taken_away = MIN_ISR in current and MIN_ISR not in wanted
        if MIN_ISR in _named(resource) and not is_taken_away:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled."
            )
    elif MIN_ISR in current and MIN_ISR not in wanted:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled.")


def _named(resource: ReplaceConfigs | ChangeConfigs) -> set[str]:
    """The names of the settings in the request."""
    return {each[0] for each in (resource.changes if isinstance(resource, ChangeConfigs) else resource.configs)}


def _difference(
    kind: int, name: str, current: Mapping[str, str], wanted: Mapping[str, str], named: Collection[str]
) -> list[Any]:
    """The records of the changes. A broker's setting that is set to its present value has one, too: a broker of Apache
    Kafka then reads again what the setting names, such as a key store (KIP-226)."""
    again = named if kind == ResourceType.BROKER else ()
    changed = [(key, value) for key, value in wanted.items() if key in again or current.get(key) != value]
    removed = [(key, None) for key in current if key not in wanted]
    return [
        stored.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
        for key, value in (*changed, *removed)
    ]


def _replaced(resource: ReplaceConfigs) -> dict[str, str]:
    wanted: dict[str, str] = {}
    for name, value in resource.configs:
        if name in wanted:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        wanted[name] = _not_null(name, value)
    return wanted


def _changed(resource: ChangeConfigs, current: Mapping[str, str]) -> dict[str, str]:
    names = Counter(name for name, _, _ in resource.changes)
    if any(times > 1 for times in names.values()):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    wanted = dict(current)
    for name, operation, value in resource.changes:
        if operation == AlterOp.DELETE:
            wanted.pop(name, None)
        elif operation == AlterOp.SET:
            wanted[name] = _not_null(name, value)
        elif operation in (AlterOp.APPEND, AlterOp.SUBTRACT):
            wanted[name] = _list_change(resource.resource_type, name, AlterOp(operation), value, current)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation {operation} for setting {name}.")
    return wanted


def _list_change(kind: int, name: str, operation: AlterOp, value: str | None, current: Mapping[str, str]) -> str:
    key = LISTS.get(kind, {}).get(name)
    if key is None or key.kind is not Kind.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Can't {operation.name} to key {name} because its type is not LIST."
        )
    items = _items(current.get(name, key.default or ""))
    given = _given(_not_null(name, value))
    if operation == AlterOp.APPEND:
        items.extend(item for item in dict.fromkeys(given) if item not in items)
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)


def _given(text: str) -> list[str]:
    """The items as Java's `split` finds them: an empty text is one empty item, and empty items at the end do not
    count."""
    items = [item.strip() for item in text.split(",")]
    while len(items) > 1 and not items[-1]:
        items.pop()
    return items


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _not_null(name: str, value: str | None) -> str:
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
    return value


def _check_resource(state: ControllerState, kind: int, name: str) -> None:
    if kind == ResourceType.TOPIC:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        reason = invalid_topic_name(name)
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        if name not in state.views and state.topic(name) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    elif kind == ResourceType.BROKER:
        _check_broker_name(name)
    elif kind == ResourceType.CLIENT_METRICS:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    elif kind == ResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def _check_broker_name(name: str) -> None:
    if not name:
        return
    if not NODE_ID.fullmatch(name):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if int(name) < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid negative broker ID {name}.")


def _check_settings(
    config: BrokerConfig, kind: int, name: str, wanted: Mapping[str, str], current: Mapping[str, str]
) -> None:
    if len(wanted) > SETTINGS_PER_RESOURCE_MAX:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"A resource may have at most {SETTINGS_PER_RESOURCE_MAX} settings.")
    for key, value in wanted.items():
        if len(key) > NAME_LENGTH_MAX or len(value) > VALUE_LENGTH_MAX:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"The configuration value of {key[:100]} is too long.")
    if kind == ResourceType.TOPIC:
        check_topic_configs(config, wanted, current)
    elif kind == ResourceType.BROKER:
        check_broker_configs(config, wanted, current, name)
    elif kind == ResourceType.CLIENT_METRICS:
        check_client_metrics(_changes(wanted, current))
    elif kind == ResourceType.GROUP:
        check_group_configs(config, _changes(wanted, current))


def _changes(wanted: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    """The settings that change. Only these are checked: earlier settings may be invalid, and must not prevent changes
    of other settings."""
    return {name: text for name, text in wanted.items() if current.get(name) != text}


def check_topic_configs(
    config: BrokerConfig, wanted: Mapping[str, str], current: Mapping[str, str] = NO_SETTINGS
) -> None:
    """Check the changed settings of a topic, and the combination of all its settings. Raises INVALID_CONFIG."""
    new = _changes(wanted, current)
    if new.get("remote.storage.enable", "false").strip().lower() == "true":
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        )
    _parse_all(_stable(TOPIC_KEYS, config), new, "topic", ErrorCode.INVALID_CONFIG)
    settings = usable(ResourceType.TOPIC, wanted)
    shortest, longest = (
        int(settings.get(name) or config.topic_default(name) or 0)
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if shortest > longest:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})",
        )


def check_broker_configs(
    config: BrokerConfig, settings: Mapping[str, str], current: Mapping[str, str], broker: str
) -> None:
    """Check dynamic settings of a broker, or of all brokers if `broker` is empty. Unknown names are allowed because
    they may belong to plug-ins, as in Kafka. Raises INVALID_REQUEST."""
    new = [name for name in settings if settings[name] != current.get(name)]
    known = [name for name in new if name in CHANGEABLE_KEYS]
    # Apache Kafka also stores changed settings of its authorizer, but a super user added in this way gets no rights
    _none_of(
        [name for name in new if name in AUTHORIZER_KEYS]
        + [name for name in known if CHANGEABLE_KEYS[name].mode is Mode.READ_ONLY],
        "Cannot update these configs dynamically",
    )
    _none_of(
        [name for name in known if PER_LISTENER_ONLY.match(name)],
        "These security configs can be dynamically updated only per-listener using the listener prefix",
    )
    for name in new:
        reason = why_unusable(ResourceType.BROKER, name, settings[name])
        if reason is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
    if not broker:
        _none_of(
            [name for name in new if (key := key_of(ResourceType.BROKER, name)) and key.mode is Mode.PER_BROKER],
            "Cannot update these configs at default cluster level, broker id must be specified",
        )
    check_together(config, settings, known, broker)


def check_client_metrics(settings: Mapping[str, str]) -> None:
    """Check a client metrics subscription (KIP-714)."""
    for name, value in settings.items():
        if name not in CLIENT_METRICS_KEYS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
        parsed = _parse(CLIENT_METRICS_KEYS[name], value, ErrorCode.INVALID_CONFIG)
        if name == "interval.ms" and parsed not in INTERVAL_MS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid value {value} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
            )
        if name == "match":
            if len(value) > PATTERNS_LENGTH_MAX:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"match has more than {PATTERNS_LENGTH_MAX} characters.")
            for pattern in _items(value):
                _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    field, equals, expression = pattern.partition("=")
    try:
        if not equals or field.strip() not in MATCH_FIELDS:
            raise ValueError(field)
        re.compile(expression.strip())
    except (ValueError, re.error, OverflowError, RecursionError):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}") from None


def check_group_configs(config: BrokerConfig, settings: Mapping[str, str]) -> None:
    """Check a group's settings against the broker's limits (`group.<protocol>.min.<setting>` and `.max.`)."""
    _parse_all(_stable(GROUP_KEYS, config), settings, "group", ErrorCode.INVALID_CONFIG)
    for name, text in settings.items():
        protocol, _, rest = name.partition(".")
        for bound, word in (("min", "greater"), ("max", "less")):
            limit_name = f"group.{protocol}.{bound}.{rest.removeprefix('num.')}"
            limit = config.text(limit_name) if limit_name in BROKER_KEYS else None
            if limit is None:
                continue
            out = int(text) < int(limit) if bound == "min" else int(text) > int(limit)
            if out:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} must be {word} than or equal to {limit_name}")


def _stable(keys: Mapping[str, ConfigKey], config: BrokerConfig) -> Mapping[str, ConfigKey]:
    """The keys that this controller knows: those of unstable features only if they are enabled."""
    if config.unstable_feature_versions_enable:
        return keys
    return {name: key for name, key in keys.items() if not key.unstable}


def _parse_all(keys: Mapping[str, ConfigKey], settings: Mapping[str, str], what: str, code: ErrorCode) -> None:
    for name in settings:
        if name in VIEW_KEYS:
            raise KafkaError(code, f"{name} can only be set for a view, when it is created.")
        if name not in keys:
            raise KafkaError(code, f"Unknown {what} config name: {name}{did_you_mean(name, keys)}")
    for name, text in settings.items():
        _parse(keys[name], text, code)


def _parse(key: ConfigKey, text: str, code: ErrorCode) -> object:
    try:
        value = key.parse(text)
    except ConfigError as error:
        raise KafkaError(code, str(error)) from None
    reason = key.unprotected(text)
    if reason is not None:
        raise KafkaError(code, reason)
    return value


def _none_of(names: list[str], text: str) -> None:
    if names:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{text}: [{', '.join(sorted(names))}]")
