"""Finds broker settings that are valid individually but contradict each other. Apache Kafka refuses them too.

The rules were derived from Kafka's behaviour with a table of settings (`tests/config/test_contradictions.py`); one rule
is our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kpybroker.config.broker_config import BrokerConfig
from kpybroker.config.broker_keys import BROKER_KEYS
from kpybroker.config.effect import BROKER, newly_set
from kpybroker.config.key import Effect
from kpybroker.config.topic_keys import TOPIC_SYNONYMS
from kpybroker.errors import ConfigError

GROUP_KINDS = ("consumer", "share", "streams")
BOUNDED = (
    *(
        (f"group.{kind}", name)
        for kind in GROUP_KINDS
        for name in ("assignment.interval.ms", "heartbeat.interval.ms", "session.timeout.ms")
    ),
    ("group.share", "delivery.count.limit"),
    ("group.share", "partition.max.record.locks"),
    ("group.share", "record.lock.duration.ms"),
)
"""Defaults of group settings. They must be between the minimum and the maximum of the same setting."""
NOT_ABOVE = (
    *((f"{prefix}.min.{name}", f"{prefix}.{name}") for prefix, name in BOUNDED),
    *((f"{prefix}.{name}", f"{prefix}.max.{name}") for prefix, name in BOUNDED),
    ("group.streams.num.standby.replicas", "group.streams.max.standby.replicas"),
    ("group.share.max.size", "group.share.max.share.sessions"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    # Kafka accepts these, but then cannot create compacted topics without their own settings, e.g. __consumer_offsets.
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
)
BELOW = tuple((f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms") for kind in GROUP_KINDS)
CODECS = ("offsets.topic.compression.codec", "share.coordinator.state.topic.compression.codec")
CODEC_MAX = 4
"""The code of zstd."""
NOT_EMPTY = ("advertised.listeners", "group.consumer.assignors", "group.share.assignors", "log.dir", "log.dirs")
DEDUPE_BYTES_MIN = 1 << 20
"""The value per thread must be greater than this, although Kafka's message says `at least`."""


class Contradiction(NamedTuple):
    """`reason` has the contradicting settings, their values and the remedy; `names` are the settings."""

    names: tuple[str, ...]
    reason: str


def contradictions(config: BrokerConfig) -> Iterator[Contradiction]:
    """All contradictions among the effective settings. Their values are in range."""
    for rule in (_orders, _times, _cleaner, _codecs, _connections, _directories, _lists, _listeners):
        yield from rule(config)


def check_fsync(config: BrokerConfig, source: str) -> None:
    """Raise ConfigError if a file both requires and disables forced writes. Kafka has no setting that disables them."""
    mapped = newly_set(BROKER, config.static).get(Effect.MAPPED)
    if mapped and "kpybroker.fsync" in config.static and config.fsync != "always":
        said = ", ".join(f"{name}={config.static[name]}" for name in mapped)
        raise ConfigError(
            f"{source}: {said} requires forced writes, but kpybroker.fsync={config.fsync} disables them; "
            "remove the first, or set the second to always"
        )


def _value(config: BrokerConfig, name: str) -> Any:
    return BROKER_KEYS[name].parse(config.text(name))


def _orders(config: BrokerConfig) -> Iterator[Contradiction]:
    for low, high in NOT_ABOVE:
        less, more = _value(config, low), _value(config, high)
        if less > more:
            said = f"{low} ({less}) is greater than {high} ({more}); lower the first or raise the second"
            yield Contradiction((low, high), said)
    for low, high in BELOW:
        less, more = _value(config, low), _value(config, high)
        if less >= more:
            said = f"{low} ({less}) is not less than {high} ({more}); lower the first or raise the second"
            yield Contradiction((low, high), said)


def _times(config: BrokerConfig) -> Iterator[Contradiction]:
    """Check settings that exist in several units. Only the first unit that is set takes effect, so no unit has its own
    range."""
    for topic_name, least, expected in (
        ("retention.ms", 1, "unlimited (-1) or, greater than or equal to 1"),
        ("segment.ms", 1, "at least 1"),
        ("segment.jitter.ms", 0, "at least 0"),
    ):
        names = tuple(name for name, _ in TOPIC_SYNONYMS[topic_name])
        in_force = next(name for name in names if config.text(name) is not None)
        time_ms = int(config.topic_default(topic_name) or 0)
        if time_ms < least and not (topic_name == "retention.ms" and time_ms < 0):
            yield Contradiction(names, f"{in_force}={config.text(in_force)}: {names[0]} must be {expected}")


def _cleaner(config: BrokerConfig) -> Iterator[Contradiction]:
    threads, dedupe = "log.cleaner.threads", "log.cleaner.dedupe.buffer.size"
    count, size_bytes = _value(config, threads), _value(config, dedupe)
    if count == 0:
        yield Contradiction((threads,), f"{threads} (0) must be at least 1")
    elif size_bytes // count <= DEDUPE_BYTES_MIN:
        said = f"{dedupe} ({size_bytes}), {threads} ({count}): {dedupe} must be at least 1MB per cleaner thread."
        yield Contradiction((dedupe, threads), said)


def _codecs(config: BrokerConfig) -> Iterator[Contradiction]:
    for name in CODECS:
        if not 0 <= (codec := _value(config, name)) <= CODEC_MAX:
            yield Contradiction((name,), f"{name} ({codec}) is not a codec; codecs are numbered from 0 to {CODEC_MAX}")


def _connections(config: BrokerConfig) -> Iterator[Contradiction]:
    per_ip, overrides = "max.connections.per.ip", "max.connections.per.ip.overrides"
    if _value(config, per_ip) == 0 and not _value(config, overrides):
        said = f"{per_ip} (0) lets no client connect; name allowed addresses in {overrides}, or raise it"
        yield Contradiction((per_ip, overrides), said)
    queued, largest = "queued.max.request.bytes", "socket.request.max.bytes"
    if 0 < _value(config, queued) < _value(config, largest):
        said = f"{queued} ({_value(config, queued)}) is less than {largest} ({_value(config, largest)}), one request"
        yield Contradiction((queued, largest), f"{said}; raise the first or lower the second")
    delay, idle = "connection.failed.authentication.delay.ms", "connections.max.idle.ms"
    if 0 <= _value(config, idle) <= _value(config, delay):
        said = f"{delay} ({_value(config, delay)}) is not less than {idle} ({_value(config, idle)})"
        yield Contradiction((delay, idle), f"{said}; lower the first, or raise the second or set it to -1")


def _directories(config: BrokerConfig) -> Iterator[Contradiction]:
    cordoned, here = "cordoned.log.dirs", "log.dirs" if config.text("log.dirs") is not None else "log.dir"
    paths, known = _value(config, cordoned), _value(config, here)
    if "*" in paths and len(paths) > 1:
        yield Contradiction((cordoned,), f"{cordoned} ({config.text(cordoned)}): * means all, so omit the rest")
    elif "broker" in config.process_roles and (missing := [path for path in paths if path not in (*known, "*")]):
        said = f"{cordoned} ({', '.join(missing)}) must be among {here} ({', '.join(known)}), with the same spelling"
        yield Contradiction((cordoned, here), said)


def _lists(config: BrokerConfig) -> Iterator[Contradiction]:
    for name in NOT_EMPTY:
        items = _value(config, name)
        if items is not None and not all(items or [""]):
            yield Contradiction(
                (name,), f"{name} ({config.text(name)}): it needs at least one entry, and no empty entries"
            )
    protocols = "group.coordinator.rebalance.protocols"
    if "classic" not in _value(config, protocols):
        said = f"{protocols} ({config.text(protocols)}) lacks classic, which cannot be disabled; add it"
        yield Contradiction((protocols,), said)


def _listeners(config: BrokerConfig) -> Iterator[Contradiction]:
    listening, advertised, early = "listeners", "advertised.listeners", "early.start.listeners"
    known = _names(config, listening)
    for name in _value(config, early) or ():
        if name not in known:
            said = f"{early} ({name}) is not among {listening} ({', '.join(known)}), and written in upper case"
            yield Contradiction((early, listening), said)
    between, protocol = "inter.broker.listener.name", "security.inter.broker.protocol"
    given = [name for name in (between, protocol) if name in config.static]
    if len(given) == 2:
        said = " and ".join(f"{name} ({config.static[name]})" for name in given)
        yield Contradiction((between, protocol), f"{said} have the same meaning; set only one of them")
    if "broker" not in config.process_roles:
        return
    shown = advertised if _value(config, advertised) else listening
    for_brokers = [name for name in _names(config, shown) if name not in config.controller_listener_names]
    if not for_brokers:
        yield Contradiction((shown,), f"{shown} ({config.text(shown)}) has only controllers'; add a broker's")
    for name in given:
        if (said := config.static[name]).upper() not in for_brokers:
            reason = f"{name} ({said}) must be among a broker's {shown} ({', '.join(for_brokers)})"
            yield Contradiction((name, shown), reason)


def _names(config: BrokerConfig, name: str) -> list[str]:
    return [text.partition(":")[0].upper() for text in _value(config, name)]
