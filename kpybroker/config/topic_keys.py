"""Settings of topics, groups and client metrics subscriptions, and the broker settings they fall back to."""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.key import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    STRING,
    ConfigKey,
    OffsetReset,
    Replicas,
    at_least,
    between,
    idle,
    one_of,
    used,
)
from kpybroker.config.log_settings import LONG_MAX

CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
MINUTE_MS = 60_000
HOUR_MS = 3_600_000

TOPIC_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        used("cleanup.policy", LIST, "delete", one_of("compact", "delete")),
        used("compression.gzip.level", INT, "-1", between(1, 9, also=-1)),
        used("compression.lz4.level", INT, "9", between(1, 17)),
        used("compression.type", STRING, "producer", one_of(*CODECS)),
        used("compression.zstd.level", INT, "3", between(-131072, 22)),
        used("delete.retention.ms", LONG, "86400000", at_least(0)),
        used("file.delete.delay.ms", LONG, "60000", at_least(0)),
        idle("flush.messages", LONG, str(LONG_MAX), at_least(1)),
        idle("flush.ms", LONG, str(LONG_MAX), at_least(0)),
        used("follower.replication.throttled.replicas", LIST, "", Replicas()),
        used("index.interval.bytes", INT, "4096", at_least(0)),
        used("internal.segment.bytes", INT, None, internal=True),
        used("leader.replication.throttled.replicas", LIST, "", Replicas()),
        idle("local.retention.bytes", LONG, "-2", at_least(-2)),
        idle("local.retention.ms", LONG, "-2", at_least(-2)),
        used("max.compaction.lag.ms", LONG, str(LONG_MAX), at_least(1)),
        used("max.message.bytes", INT, "1048588", at_least(0)),
        used("message.timestamp.after.max.ms", LONG, "3600000", at_least(0)),
        used("message.timestamp.before.max.ms", LONG, str(LONG_MAX), at_least(0)),
        used("message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime")),
        used("min.cleanable.dirty.ratio", DOUBLE, "0.5", between(0, 1)),
        used("min.compaction.lag.ms", LONG, "0", at_least(0)),
        used("min.insync.replicas", INT, "1", at_least(1)),
        idle("preallocate", BOOLEAN, "false"),
        idle("remote.log.copy.disable", BOOLEAN, "false"),
        idle("remote.log.delete.on.disable", BOOLEAN, "false"),
        idle("remote.storage.enable", BOOLEAN, "false"),
        used("retention.bytes", LONG, "-1"),
        used("retention.ms", LONG, "604800000", at_least(-1)),
        used("segment.bytes", INT, "1073741824", at_least(1048576)),
        used("segment.index.bytes", INT, "10485760", at_least(4)),
        used("segment.jitter.ms", LONG, "0", at_least(0)),
        used("segment.ms", LONG, "604800000", at_least(1)),
        used("unclean.leader.election.enable", BOOLEAN, "false"),
    )
}

TOPIC_SYNONYMS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "compression.gzip.level": (("compression.gzip.level", 1),),
    "compression.lz4.level": (("compression.lz4.level", 1),),
    "compression.type": (("compression.type", 1),),
    "compression.zstd.level": (("compression.zstd.level", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "preallocate": (("log.preallocate", 1),),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", MINUTE_MS),
        ("log.retention.hours", HOUR_MS),
    ),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)),
    "unclean.leader.election.enable": (("unclean.leader.election.enable", 1),),
}
"""Per topic setting the broker settings it falls back to, strongest first, each with the factor to the topic's unit."""

GROUP_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        used("consumer.assignment.interval.ms", INT, "1000", at_least(0)),
        used("consumer.heartbeat.interval.ms", INT, "5000", at_least(1)),
        used("consumer.session.timeout.ms", INT, "45000", at_least(1)),
        idle("share.assignment.interval.ms", INT, "1000", at_least(0)),
        idle("share.auto.offset.reset", STRING, "latest", OffsetReset()),
        idle("share.delivery.count.limit", INT, "5", at_least(2)),
        idle("share.heartbeat.interval.ms", INT, "5000", at_least(1)),
        idle("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted")),
        idle("share.partition.max.record.locks", INT, "2000", at_least(100)),
        idle("share.record.lock.duration.ms", INT, "30000", at_least(1000)),
        idle("share.renew.acknowledge.enable", BOOLEAN, "true"),
        idle("share.session.timeout.ms", INT, "45000", at_least(1)),
        idle("streams.assignment.interval.ms", INT, "1000", at_least(0)),
        idle("streams.heartbeat.interval.ms", INT, "5000", at_least(1)),
        idle("streams.initial.rebalance.delay.ms", INT, "3000", at_least(0)),
        idle("streams.num.standby.replicas", INT, "0", at_least(0)),
        idle("streams.session.timeout.ms", INT, "45000", at_least(1)),
    )
}
"""A group setting falls back to the broker setting of the same name with `group.` in front, where there is one."""

CLIENT_METRICS_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        idle("interval.ms", INT, "300000"),
        idle("match", LIST, ""),
        idle("metrics", LIST, ""),
    )
}
