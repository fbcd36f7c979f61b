"""Decides which dynamic settings can be applied, with the same rule for changes and for replicated metadata.

The metadata may contain any text, because an earlier version or Apache Kafka may have accepted more. An unusable value
stays in the metadata, and the last valid value stays in effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from kpybroker.config.effect import BROKER, NOTHING, key_of
from kpybroker.config.key import SHOWN_MAX, ConfigKey
from kpybroker.config.security_keys import SASL_KEYS, STORE_KEYS
from kpybroker.config.topic_keys import TOPIC_KEYS, TOPIC_SYNONYMS
from kpybroker.errors import ConfigError

KEPT_LENGTH_MAX = 64
"""Longer values are not cached."""
TOPICS_OF = {
    synonym: [(topic, factor) for topic, names in TOPIC_SYNONYMS.items() for name, factor in names if name == synonym]
    for names in TOPIC_SYNONYMS.values()
    for synonym, _ in names
}
"""The topic settings for which a broker setting is the default, each with the factor that converts its unit."""
CONNECTIONS_MIN = 2
"""The number of connections from a client of Apache Kafka to a broker: one for metadata, which stays open, and one for
requests."""
LEAST = {"max.connections": CONNECTIONS_MIN, "max.connection.creation.rate": 1}
"""Minimum values of dynamic settings: below them, no client could connect to undo the change. A properties file may
have lower values, because it can be edited."""
MIN_ISR = "min.insync.replicas"
"""Must be set for the whole cluster while eligible leader replicas are enabled."""
ENTITIES = {2: "topics", 4: "brokers", 16: "client-metrics", 32: "groups"}
"""The names of resource types in `kafka-configs --entity-type`."""


class Unusable(NamedTuple):
    """A setting in the metadata that cannot be applied, and the reason."""

    resource_type: int
    resource_name: str
    name: str
    value: str
    reason: str

    @property
    def subject(self) -> str:
        """The name and the resource of the setting, as text."""
        of = f"{ENTITIES.get(self.resource_type, self.resource_type)} {self.resource_name or '(default)'}"
        return f"the setting {self.name} of {of}"

    @property
    def way_out(self) -> str:
        """The command that removes the setting, or sets another value if the setting is required."""
        is_default = self.resource_type == BROKER and not self.resource_name
        entity = "--entity-default" if is_default else f"--entity-name {self.resource_name}"
        entity_type = ENTITIES.get(self.resource_type, str(self.resource_type))
        change = f"--delete-config {self.name}"
        if is_default and self.name == MIN_ISR:
            change = f"--add-config {self.name}=1"
        return f"kafka-configs --bootstrap-server <host:port> --alter --entity-type {entity_type} {entity} {change}"


def topic_text(topic_setting: str, text: str, factor: int) -> str:
    """The value of a broker setting, converted to the default of a topic setting."""
    if len(TOPIC_SYNONYMS[topic_setting]) == 1:
        return text
    return str(max(int(text) * factor, -1))  # every negative retention means no limit


def why_unusable(resource_type: int, name: str, text: str) -> str | None:
    """The reason why this value cannot be applied, as in Kafka's message if Kafka has such an error; None if it can be
    applied.

    A value that requires a protection that is not available (`Effect.REFUSED`) cannot be applied. None for unknown
    settings.
    """
    if len(text) > KEPT_LENGTH_MAX:
        return _why_unusable(resource_type, name, text)
    return _kept(resource_type, name, text)


@lru_cache(maxsize=4096)
def _kept(resource_type: int, name: str, text: str) -> str | None:
    return _why_unusable(resource_type, name, text)


def _why_unusable(resource_type: int, name: str, text: str) -> str | None:
    key = key_of(resource_type, name)
    if key is None:
        return None
    try:
        key.parse(text)
        unprotected = key.unprotected(text)
        if unprotected is not None:
            return unprotected
        if resource_type == BROKER:
            _check_start(key, text)
            _check_topics_default(key, text)
            _check_least(key, text)
    except ConfigError as error:
        return str(error)
    return None


def _check_start(key: ConfigKey, text: str) -> None:
    is_of_tls = key.name.startswith("ssl.") and key.has_effect and key.name not in STORE_KEYS
    if is_of_tls or (key.name in SASL_KEYS and key.asks(text)):
        shown = "[hidden]" if key.sensitive else text[:SHOWN_MAX]
        raise ConfigError(
            f"{key.name}={shown} cannot be changed while the broker runs: write it to the broker's properties file, "
            "and start the broker again"
        )


def _check_topics_default(key: ConfigKey, text: str) -> None:
    for topic_setting, factor in TOPICS_OF.get(key.name, ()):
        reason = TOPIC_KEYS[topic_setting].refusal(topic_text(topic_setting, text, factor))
        if reason is not None:
            raise ConfigError(f"Invalid value {text} for configuration {key.name}: {reason}")


def _check_least(key: ConfigKey, text: str) -> None:
    least = LEAST.get(key.name)
    if least is not None and int(text) < least:
        raise ConfigError(
            f"Invalid value {text} for configuration {key.name}: it would shut out every client, and could not be "
            f"undone; Value must be at least {least}"
        )


def usable(resource_type: int, settings: Mapping[str, str], before: Mapping[str, str] = NOTHING) -> dict[str, str]:
    """The settings to apply. A setting that cannot be applied keeps its value in `before`, the settings applied so
    far."""
    found = {}
    for name, text in settings.items():
        good = text if before.get(name) == text or why_unusable(resource_type, name, text) is None else before.get(name)
        if good is not None:
            found[name] = good
    return found
