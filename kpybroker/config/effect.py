"""Which settings that somebody set do nothing on this broker: what is worth a warning."""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.broker_keys import CHANGEABLE_KEYS
from kpybroker.config.key import ConfigKey
from kpybroker.config.topic_keys import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS

LISTENER_PREFIX = "listener.name."
KEYS: Mapping[int, Mapping[str, ConfigKey]] = {
    2: TOPIC_KEYS,
    4: CHANGEABLE_KEYS,
    16: CLIENT_METRICS_KEYS,
    32: GROUP_KEYS,
}
"""The settings of each type of resource, by the codes of DescribeConfigs."""
TOPIC, BROKER = 2, 4
NOTHING: Mapping[str, str] = {}


def without_prefix(name: str) -> str:
    """The setting that `listener.name.<listener>.<setting>` is for one listener; any other name as it is."""
    return name.split(".", 3)[-1] if name.startswith(LISTENER_PREFIX) else name


def without_effect(kind: int, settings: Mapping[str, str], before: Mapping[str, str] = NOTHING) -> list[str]:
    """Names of those newly set, by name, that change nothing here; what only repeats a default is not worth a word."""
    keys = KEYS.get(kind, {})
    found = []
    for name, value in settings.items():
        key = keys.get(without_prefix(name))
        idle = kind == BROKER if key is None else not key.effect and value != key.default
        if idle and before.get(name) != value:
            found.append(name)
    return sorted(found)
