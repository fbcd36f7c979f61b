"""Parses properties into a BrokerConfig, and checks names, values and combinations."""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.broker_config import NO_SETTINGS, NOT_GIVEN, BrokerConfig
from kpybroker.config.contradictions import check_fsync, contradictions
from kpybroker.config.properties import check_names, check_protection
from kpybroker.config.topic_keys import TOPIC_KEYS
from kpybroker.errors import ConfigError


def parse_config(properties: Mapping[str, str] = NO_SETTINGS, source: str = "configuration") -> BrokerConfig:
    """Check and parse settings given as text. Raises ConfigError with the setting, its value and the expected range."""
    check_protection(properties, source)
    check_names(properties, source)
    static = {**NOT_GIVEN, **properties}
    if "node.id" not in properties and "broker.id" in properties:
        static["node.id"] = properties["broker.id"]
    parsed = BrokerConfig.of(static, NO_SETTINGS, NO_SETTINGS)
    check_fsync(parsed, source)
    for contradiction in contradictions(parsed):
        raise ConfigError(f"{source}: {contradiction.reason}")
    for name in TOPIC_KEYS:
        parsed.check_topic_default(name)
    return parsed
