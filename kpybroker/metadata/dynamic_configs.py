"""Keeps the effective dynamic settings and quotas of one node, which are those in the metadata that can be applied.

A setting that cannot be applied stays in the metadata and is logged, with the command that removes it; the last good
value stays in effect. All code reads settings from this module, never from an Image.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from math import isnan

from kpybroker.config import BrokerConfig, LogSettings
from kpybroker.config.dynamic import Unusable, usable, why_unusable
from kpybroker.config.effect import key_of
from kpybroker.config.key import Mode
from kpybroker.config.resource_type import ResourceType
from kpybroker.metadata.image import Image
from kpybroker.metadata.quotas import NO_QUOTAS, Entity, Quotas, why_unusable_quota

log = logging.getLogger(__name__)

SHOWN_MAX = 300
"""The most characters of a logged reason, which contains the value."""

Resource = tuple[int, str]
"""Type and name."""


class DynamicConfigs:
    """Follows the Images of the metadata, beginning with the empty one. No method raises an error."""

    def __init__(self, config: BrokerConfig, node_id: int) -> None:
        self.config = config
        """The broker's effective settings."""
        self.quotas: Quotas = NO_QUOTAS
        """The effective quotas; if all can be applied, the mapping of the Image itself."""
        self._own = str(node_id)
        self._applied: dict[Resource, Mapping[str, str]] = {}
        """The effective settings of each resource that has a setting that cannot be applied."""
        self._unusable: dict[Resource, list[Unusable]] = {}
        self._unusable_quotas: dict[tuple[Entity, str], float] = {}

    @property
    def unusable_count(self) -> int:
        """The number of settings and quotas in the metadata that cannot be applied."""
        return sum(map(len, self._unusable.values())) + len(self._unusable_quotas)

    def follow(self, old: Image, new: Image, changed: Iterable[Resource]) -> bool:
        """Apply the settings of these resources, and the quotas. Returns whether any of the settings concern this
        broker."""
        is_brokers = False
        for resource in changed:
            kind, name = resource
            if kind == ResourceType.BROKER:
                if name not in ("", self._own):
                    continue
                is_brokers = True
            self._follow(resource, old, new)
        if is_brokers:
            default = self.settings(new, ResourceType.BROKER, "")
            self.config = self.config.with_dynamic(default, self.settings(new, ResourceType.BROKER, self._own))
        if new.quotas is not old.quotas:
            self._follow_quotas(new.quotas)
        return is_brokers

    def settings(self, image: Image, kind: int, name: str) -> Mapping[str, str]:
        """The settings of a resource, without those that cannot be applied."""
        return self._applied.get((kind, name)) or image.config(kind, name)

    def log_settings(self, image: Image, topic: str, *, replayed: bool) -> LogSettings:
        """The settings of a topic's logs."""
        return self.config.log_settings(self.settings(image, ResourceType.TOPIC, topic), replayed=replayed)

    def _follow(self, resource: Resource, old: Image, new: Image) -> None:
        kind, name = resource
        given, before = new.config(kind, name), old.config(kind, name)
        found = [
            Unusable(kind, name, setting, text, reason)
            for setting, text in given.items()
            if (reason := _why_unusable(resource, setting, text)) is not None
        ]
        if not found:
            self._applied.pop(resource, None)
            self._unusable.pop(resource, None)
            return
        applied = {
            setting: text
            for setting, text in usable(kind, given, usable(kind, self.settings(old, kind, name))).items()
            if not _is_misplaced(resource, setting)
        }
        self._applied[resource], self._unusable[resource] = applied, found
        for each in found:
            if before.get(each.name) != each.value:
                good = applied.get(each.name)
                log.error(
                    "%s cannot be applied: %s. It stays in the metadata, and %s. To fix this: %s",
                    each.subject,
                    each.reason[:SHOWN_MAX],
                    "the value of another level, or the default, stays in effect"
                    if good is None
                    else _holds(kind, each.name, good),
                    each.way_out,
                )

    def _follow_quotas(self, given: Quotas) -> None:
        found: dict[tuple[Entity, str], float] = {}
        applied: dict[Entity, Mapping[str, float]] = {}
        for entity, values in given.items():
            reasons = {key: why for key, value in values.items() if (why := why_unusable_quota(key, value)) is not None}
            if not reasons:
                applied[entity] = values
                continue
            good = {key: value for key, value in self.quotas.get(entity, {}).items() if key in reasons}
            applied[entity] = {**{key: value for key, value in values.items() if key not in reasons}, **good}
            for key, reason in reasons.items():
                found[entity, key] = values[key]
                if not _same(self._unusable_quotas.get((entity, key)), values[key]):
                    self._tell_of_quota(entity, key, reason, good.get(key))
        self.quotas = applied if found else given
        self._unusable_quotas = found

    def _tell_of_quota(self, entity: Entity, key: str, reason: str, good: float | None) -> None:
        log.error(
            "the quota %s of %s cannot be applied: %s. It stays in the metadata, and %s. To fix this: "
            "kafka-configs --bootstrap-server <host:port> --alter %s --delete-config %s",
            key,
            dict(entity),
            reason,
            "no client is limited by it" if good is None else f"the last valid value, {good}, stays in effect",
            _named(entity),
            key,
        )


def _why_unusable(resource: Resource, setting: str, text: str) -> str | None:
    if _is_misplaced(resource, setting):
        return "only a single broker can have this setting"
    return why_unusable(resource[0], setting, text)


def _is_misplaced(resource: Resource, setting: str) -> bool:
    """Whether this is a setting of all brokers that only a single broker can have. Apache Kafka ignores it, too."""
    key = key_of(ResourceType.BROKER, setting) if resource == (ResourceType.BROKER, "") else None
    return key is not None and key.mode is Mode.PER_BROKER


def _same(one: float | None, other: float) -> bool:
    return one is not None and (one == other or (isnan(one) and isnan(other)))


def _named(entity: Entity) -> str:
    """The options of kafka-configs that name an entity."""
    plural = {"user": "users", "client-id": "clients", "ip": "ips"}
    words = []
    for kind, name in entity:
        of_name = "--entity-default" if name is None else f"--entity-name {name}"
        words.append(f"--entity-type {plural.get(kind, kind)} {of_name}")
    return " ".join(words)


def _holds(kind: int, name: str, value: str) -> str:
    key = key_of(kind, name)
    return f"the last valid value{'' if key is None or key.sensitive else f', {value!r},'} stays in effect"
