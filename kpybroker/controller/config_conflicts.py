"""Refuses broker settings that are valid on their own, but conflict with other settings or with their previous
values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kpybroker.config import BrokerConfig
from kpybroker.config.contradictions import contradictions
from kpybroker.errors import ErrorCode, KafkaError

THREADS = (
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.reader.threads",
)
"""Numbers of threads. In one change, Kafka lets such a number be at most doubled or halved. These settings have no
effect in kpybroker, but a script must fail as it does with Kafka."""
LOCAL = (
    ("local.retention.ms", "retention.ms", "log.local.retention.ms", "log.retention.ms"),
    ("local.retention.bytes", "retention.bytes", "log.local.retention.bytes", "log.retention.bytes"),
)
"""Settings and their limits. Kafka refuses a change that exceeds a limit, but it starts with such settings."""
OF_ONE_NODE = ("log.dir", "log.dirs")
"""Settings that differ between nodes, so that this node can compare others only with its own."""
AS_THE_WHOLE, UNLIMITED = -2, -1


def check_together(config: BrokerConfig, settings: Mapping[str, str], new: Iterable[str], broker: str) -> None:
    """Check dynamic settings of a broker, or of all brokers if `broker` is empty, on top of `config`. Raises
    INVALID_REQUEST.

    `new` has the changed settings; conflicts between the other settings are ignored.
    """
    wanted = config.with_dynamic(config.dynamic_default, settings) if broker else config.with_dynamic(settings, {})
    is_own = broker == str(config.node_id)
    for reason in (*_threads(config, wanted, new), *_local(wanted, new), *_contradictions(wanted, new, is_own=is_own)):
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)


def _threads(before: BrokerConfig, wanted: BrokerConfig, new: Iterable[str]) -> Iterator[str]:
    for name in THREADS:
        if name not in new:
            continue
        old, now = int(before.text(name) or 1), int(wanted.text(name) or 1)
        said = f"Dynamic thread count update validation failed for {name}={now}, value should "
        if now > old * 2:
            yield f"{said}not be greater than double the current value {old}"
        if now < old // 2:
            yield f"{said}be at least half the current value {old}"


def _local(wanted: BrokerConfig, new: Iterable[str]) -> Iterator[str]:
    for local_name, whole_name, broker_name, whole_broker_name in LOCAL:
        if broker_name not in new and whole_broker_name not in new:
            continue
        local, whole = int(wanted.topic_default(local_name) or 0), int(wanted.topic_default(whole_name) or 0)
        if local == AS_THE_WHOLE or whole == UNLIMITED:
            continue
        said = f"Invalid value {local} for configuration {broker_name}: Value must not be "
        if local == UNLIMITED:
            yield f"{said}{UNLIMITED} as {whole_broker_name} value is set as {whole}"
        if local > whole:
            yield f"{said}more than {whole_broker_name} property value: {whole}"


def _contradictions(wanted: BrokerConfig, new: Iterable[str], *, is_own: bool) -> Iterator[str]:
    for contradiction in contradictions(wanted):
        is_known = is_own or not any(name in OF_ONE_NODE for name in contradiction.names)
        if is_known and any(name in new for name in contradiction.names):
            yield contradiction.reason
