"""Finds the table row and the effect (`key.Effect`) of a setting."""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.broker_keys import CHANGEABLE_KEYS
from kpybroker.config.key import ConfigKey, Effect
from kpybroker.config.resource_type import ResourceType
from kpybroker.config.security_keys import AUTHORIZER_KEYS
from kpybroker.config.topic_keys import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS

LISTENER_PREFIX = "listener.name."
OF_MECHANISMS = ("sasl.", "connections.max.reauth.ms")
"""Settings for one SASL mechanism of a listener."""
KEYS: Mapping[int, Mapping[str, ConfigKey]] = {
    ResourceType.TOPIC: TOPIC_KEYS,
    ResourceType.BROKER: CHANGEABLE_KEYS,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_KEYS,
    ResourceType.GROUP: GROUP_KEYS,
}
"""The settings of each type of resource, by the codes of DescribeConfigs."""
TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
NOTHING: Mapping[str, str] = {}


def without_prefix(name: str) -> str:
    """The setting that `listener.name.<listener>.<setting>` or `listener.name.<listener>.<mechanism>.<setting>` sets
    for one listener; any other name unchanged."""
    if not name.startswith(LISTENER_PREFIX):
        return name
    setting = name.split(".", 3)[-1]
    _, _, of_mechanism = setting.partition(".")
    return of_mechanism if setting not in CHANGEABLE_KEYS and of_mechanism.startswith(OF_MECHANISMS) else setting


def key_of(kind: int, name: str) -> ConfigKey | None:
    """The row of a setting, with or without the prefix of a listener; None if the setting is unknown."""
    if kind != BROKER:
        return KEYS.get(kind, {}).get(name)
    setting = without_prefix(name)
    return CHANGEABLE_KEYS.get(setting) or AUTHORIZER_KEYS.get(setting)


def newly_set(
    kind: int, settings: Mapping[str, str], before: Mapping[str, str] = NOTHING
) -> dict[Effect | None, list[str]]:
    """The names of newly set settings, sorted, by effect; unknown settings of a broker are under None.

    Repeated defaults and invalid values are omitted.
    """
    found: dict[Effect | None, list[str]] = {}
    for name in sorted(settings):
        if before.get(name) == settings[name]:
            continue
        key = key_of(kind, name)
        if key is None:
            if kind == BROKER:
                found.setdefault(None, []).append(name)
        elif key.refusal(settings[name]) is None and key.asks(settings[name]):
            found.setdefault(key.effect, []).append(name)
    return found
