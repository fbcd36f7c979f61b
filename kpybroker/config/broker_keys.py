"""All broker settings by name: those of Kafka 4.3, and our own with the prefix `kpybroker.`."""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.cluster_keys import CLUSTER_KEYS
from kpybroker.config.coordinator_keys import COORDINATOR_KEYS
from kpybroker.config.key import LONG, ConfigKey, Mode, at_least, obeyed
from kpybroker.config.log_keys import LOG_KEYS
from kpybroker.config.own_keys import OWN_KEYS
from kpybroker.config.security_keys import SECURITY_KEYS
from kpybroker.config.server_keys import SERVER_KEYS
from kpybroker.config.tiered_keys import TIERED_KEYS

BROKER_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in sorted(
        (*CLUSTER_KEYS, *COORDINATOR_KEYS, *LOG_KEYS, *SERVER_KEYS, *SECURITY_KEYS, *TIERED_KEYS, *OWN_KEYS),
        key=lambda key: key.name,
    )
}

RATE_MAX = str((1 << 63) - 1)

DYNAMIC_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        obeyed("follower.replication.throttled.rate", LONG, RATE_MAX, at_least(0), Mode.CLUSTER_WIDE),
        obeyed("leader.replication.throttled.rate", LONG, RATE_MAX, at_least(0), Mode.CLUSTER_WIDE),
        obeyed("replica.alter.log.dirs.io.max.bytes.per.second", LONG, RATE_MAX, at_least(0), Mode.CLUSTER_WIDE),
    )
}
"""Settings that are only dynamic: a file cannot have them, and they are shown only if they are set."""

CHANGEABLE_KEYS: Mapping[str, ConfigKey] = {**BROKER_KEYS, **DYNAMIC_KEYS}
"""All settings that IncrementalAlterConfigs may name for a broker; READ_ONLY ones among them are refused."""

BROKER_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "log.retention.hours": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "log.retention.minutes": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "log.retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "log.roll.hours": ("log.roll.ms", "log.roll.hours"),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "log.roll.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "log.roll.ms": ("log.roll.ms", "log.roll.hours"),
}
"""Broker settings for the same thing in different units; the first one that is set takes effect."""
