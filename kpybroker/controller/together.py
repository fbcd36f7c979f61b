"""Broker settings that are fine one by one and not together, or not after what they were before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from kpybroker.config import BrokerConfig
from kpybroker.errors import ErrorCode, KafkaError

DEDUPE_BYTES_MIN = 1 << 20
LAGS = ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms")
THREADS = (
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
)
"""Kafka lets these grow to double and shrink to half at once; here they do nothing, but a script is to fail alike."""
LOCAL = (
    ("local.retention.ms", "retention.ms", "log.local.retention.ms", "log.retention.ms"),
    ("local.retention.bytes", "retention.bytes", "log.local.retention.bytes", "log.retention.bytes"),
)
AS_THE_WHOLE, UNLIMITED = -2, -1


def check_together(config: BrokerConfig, settings: Mapping[str, str], new: Iterable[str], *, default: bool) -> None:
    """Check the dynamic settings of a broker, or of all by `default`, over `config`. Raises INVALID_REQUEST.

    `new` are those of `settings` that change; what was contradictory before is nobody's fault now.
    """
    wanted = config.with_dynamic(settings, {}) if default else config.with_dynamic(config.dynamic_default, settings)
    for reason in (*_threads(config, wanted, new), *_local(wanted, new), *_others(wanted, new)):
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


def _others(wanted: BrokerConfig, new: Iterable[str]) -> Iterator[str]:
    if "log.retention.ms" in new and wanted.text("log.retention.ms") == "0":
        yield "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"
    conflict = wanted.compaction_lags_conflict()
    if conflict is not None and any(name in new for name in LAGS):  # Kafka takes it, and has no groups from then on
        yield conflict
    if "log.cleaner.threads" in new and wanted.text("log.cleaner.threads") == "0":
        yield "log.cleaner.threads must be at least 1"
    threads = max(int(wanted.text("log.cleaner.threads") or 1), 1)
    if "log.cleaner.dedupe.buffer.size" in new and wanted.log_cleaner_dedupe_buffer_size // threads < DEDUPE_BYTES_MIN:
        yield "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
