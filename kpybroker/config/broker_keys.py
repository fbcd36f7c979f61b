"""Every broker setting by its name: Kafka 4.3's, and our own with the prefix `kpybroker.`."""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.cluster_keys import CLUSTER_KEYS
from kpybroker.config.coordinator_keys import COORDINATOR_KEYS
from kpybroker.config.key import ConfigKey
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
"""Broker settings that say the same in different units, strongest first."""
