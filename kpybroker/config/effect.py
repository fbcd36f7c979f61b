"""What becomes of the settings that somebody gives: each row of the tables says it (`key.Effect`)."""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.broker_keys import CHANGEABLE_KEYS
from kpybroker.config.key import ConfigKey, Effect
from kpybroker.config.security_keys import AUTHORIZER_KEYS
from kpybroker.config.topic_keys import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS

LISTENER_PREFIX = "listener.name."
OF_MECHANISMS = ("sasl.", "connections.max.reauth.ms")
"""What may be set for one SASL mechanism of a listener."""
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
    """The setting that `listener.name.<listener>.<setting>` or `listener.name.<listener>.<mechanism>.<setting>` is for
    one listener; any other name as it is."""
    if not name.startswith(LISTENER_PREFIX):
        return name
    setting = name.split(".", 3)[-1]
    _, _, of_mechanism = setting.partition(".")
    return of_mechanism if setting not in CHANGEABLE_KEYS and of_mechanism.startswith(OF_MECHANISMS) else setting


def key_of(kind: int, name: str) -> ConfigKey | None:
    """The row of a setting, also of one for a single listener; None where it is not known."""
    if kind != BROKER:
        return KEYS.get(kind, {}).get(name)
    setting = without_prefix(name)
    return CHANGEABLE_KEYS.get(setting) or AUTHORIZER_KEYS.get(setting)


def newly_set(
    kind: int, settings: Mapping[str, str], before: Mapping[str, str] = NOTHING
) -> dict[Effect | None, list[str]]:
    """Names of those newly set, sorted, by what becomes of them; None is for unknown ones of a broker.

    What only repeats a default is left out, and so is what has no valid value.
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
