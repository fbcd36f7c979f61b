"""Logs changes of the cluster, one line each: brokers that register, are fenced or leave, changes of ISRs,
unclean elections, and settings without effect.

Every node of a cluster logs them, unless KPYBROKER_LOG is set to a different level (`cli/serving.py`). Changes of a
partition are logged by the broker that leads it; simultaneous changes share a line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from kpybroker.config.effect import BROKER, newly_set
from kpybroker.config.key import Effect
from kpybroker.metadata.image import BrokerImage, Image, PartitionImage

CHRONICLE = "kpybroker.cluster"
log = logging.getLogger(CHRONICLE)

NAMED_MAX = 5
"""A log line names at most this many partitions or settings, and counts the rest."""
NAMED_AT_START_MAX = 40
TOLD: Mapping[Effect | None, str] = {
    Effect.MAPPED: "settings kept by kpybroker.fsync=always: records are on disk before they are acknowledged",
    Effect.HARMLESS: "settings without effect on this broker (see docs/configuration.md)",
    None: "ignored settings of other software",
}
"""The text for settings by their effect. Refused settings are not in it: `DynamicConfigs` logs them if they are
dynamic, and a node with such a setting in its file does not start."""
RECOVERING = 1
RESOURCES = {2: "topic", 4: "broker", 16: "client metrics", 32: "group"}


def tell(old: Image, new: Image, node_id: int) -> None:
    """Log how an Image differs from the previous one. Nothing is logged for the first Image."""
    if old.offset < 0:
        return
    if old.brokers is not new.brokers:
        for broker_id in sorted({*old.brokers, *new.brokers}):
            said = _of_broker(old.brokers.get(broker_id), new.brokers.get(broker_id))
            if said:
                log.info("broker %d %s", broker_id, said)
    shrunk, grown, unclean = [], [], []
    for name, before, now in _led(old, new, node_id):
        if now.leader_recovery_state == RECOVERING != before.leader_recovery_state:
            unclean.append(name)
        elif set(now.isr) < set(before.isr):
            shrunk.append(f"{name}: {_listed(before.isr)} to {_listed(now.isr)}")
        elif set(now.isr) > set(before.isr):
            grown.append(f"{name}: {_listed(before.isr)} to {_listed(now.isr)}")
    for effect, said in TOLD.items():
        settings = _set(old, new, node_id, effect)
        if settings:
            log.warning("%s, %d: %s", said, len(settings), _named(settings))
    for what, names in (("shrink", shrunk), ("grow", grown)):
        if names:
            log.info("ISRs %s, %d: %s", what, len(names), _named(names))
    if unclean:
        log.warning(
            "unclean election: this broker leads %d partitions, which may lack acknowledged records: %s",
            len(unclean),
            _named(unclean),
        )


def _of_broker(before: BrokerImage | None, now: BrokerImage | None) -> str | None:
    if now is None:
        return "is unregistered"
    if before is None or before.epoch != now.epoch:
        return f"is registered, epoch {now.epoch}"
    if now.in_controlled_shutdown and not before.in_controlled_shutdown:
        return "stops (controlled shutdown)"
    if now.fenced != before.fenced:
        return "is fenced" if now.fenced else "is unfenced"
    return None


def _led(old: Image, new: Image, node_id: int) -> Iterator[tuple[str, PartitionImage, PartitionImage]]:
    for name in new.changes.topics:
        before, now = old.topics.get(name), new.topics[name]
        if before is not None and before.id == now.id:
            for index, (was, partition) in enumerate(zip(before.partitions, now.partitions, strict=False)):
                if was is not partition and partition.leader == node_id:
                    yield f"{name}-{index}", was, partition


def _listed(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids)) or "none"


def _named(names: list[str]) -> str:
    return "; ".join(names[:NAMED_MAX]) + (", ..." if len(names) > NAMED_MAX else "")


def _set(old: Image, new: Image, node_id: int, effect: Effect | None) -> list[str]:
    return [
        f"{setting} of {RESOURCES[kind]} {name or 'default'}"
        for kind, name in new.changes.configs
        if kind != BROKER or name in ("", str(node_id))
        for setting in newly_set(kind, new.config(kind, name), old.config(kind, name)).get(effect, ())
    ]


def tell_start(static: Mapping[str, str]) -> None:
    """Log the settings in a node's own file that are mapped to other settings or have no effect, in one line for each
    kind."""
    found = newly_set(BROKER, static)
    if static.get("kpybroker.fsync") == "always":
        found.pop(Effect.MAPPED, None)
    for effect, said in TOLD.items():
        names = found.get(effect, [])
        if names:
            more = ", ..." if len(names) > NAMED_AT_START_MAX else ""
            log.warning("%s, %d: %s%s", said, len(names), ", ".join(names[:NAMED_AT_START_MAX]), more)
