"""Settings of topics, groups and client metrics subscriptions, and the broker settings that provide their defaults."""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.delivery_keys import DELIVERY_KEYS
from kpybroker.config.key import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    STRING,
    ConfigKey,
    OffsetReset,
    ThrottledReplicas,
    at_least,
    between,
    harmless,
    mapped,
    obeyed,
    one_of,
    refused,
)
from kpybroker.config.log_keys import FSYNC_ALWAYS
from kpybroker.config.log_settings import LONG_MAX
from kpybroker.config.tiered_keys import NO_TIERS, ONLY_TIERS

CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
MINUTE_MS = 60_000
HOUR_MS = 3_600_000

TOPIC_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        obeyed("cleanup.policy", LIST, "delete", one_of("compact", "delete")),
        obeyed("compression.gzip.level", INT, "-1", between(1, 9, also=-1)),
        obeyed("compression.lz4.level", INT, "9", between(1, 17)),
        obeyed("compression.type", STRING, "producer", one_of(*CODECS)),
        obeyed("compression.zstd.level", INT, "3", between(-131072, 22)),
        obeyed("delete.retention.ms", LONG, "86400000", at_least(0)),
        obeyed("errors.deadletterqueue.group.enable", BOOLEAN, "false", unstable=True),
        obeyed("file.delete.delay.ms", LONG, "60000", at_least(0)),
        mapped("flush.messages", LONG, str(LONG_MAX), at_least(1), doc=FSYNC_ALWAYS),
        mapped("flush.ms", LONG, str(LONG_MAX), at_least(0), doc=FSYNC_ALWAYS),
        obeyed("follower.replication.throttled.replicas", LIST, "", ThrottledReplicas()),
        obeyed("index.interval.bytes", INT, "4096", at_least(0)),
        obeyed("internal.segment.bytes", INT, None, internal=True),
        *DELIVERY_KEYS,
        obeyed("leader.replication.throttled.replicas", LIST, "", ThrottledReplicas()),
        harmless("local.retention.bytes", LONG, "-2", at_least(-2), doc=ONLY_TIERS),
        harmless("local.retention.ms", LONG, "-2", at_least(-2), doc=ONLY_TIERS),
        obeyed("max.compaction.lag.ms", LONG, str(LONG_MAX), at_least(1)),
        obeyed("max.message.bytes", INT, "1048588", at_least(0)),
        obeyed("message.timestamp.after.max.ms", LONG, "3600000", at_least(0)),
        obeyed("message.timestamp.before.max.ms", LONG, str(LONG_MAX), at_least(0)),
        obeyed("message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime")),
        obeyed("min.cleanable.dirty.ratio", DOUBLE, "0.5", between(0, 1)),
        obeyed("min.compaction.lag.ms", LONG, "0", at_least(0)),
        obeyed("min.insync.replicas", INT, "1", at_least(1)),
        harmless("preallocate", BOOLEAN, "false"),
        harmless("remote.log.copy.disable", BOOLEAN, "false"),
        harmless("remote.log.delete.on.disable", BOOLEAN, "false"),
        refused("remote.storage.enable", BOOLEAN, "false", doc=NO_TIERS),
        obeyed("retention.bytes", LONG, "-1"),
        obeyed("retention.ms", LONG, "604800000", at_least(-1)),
        obeyed("segment.bytes", INT, "1073741824", at_least(1048576)),
        obeyed("segment.index.bytes", INT, "10485760", at_least(4)),
        obeyed("segment.jitter.ms", LONG, "0", at_least(0)),
        obeyed("segment.ms", LONG, "604800000", at_least(1)),
        obeyed("unclean.leader.election.enable", BOOLEAN, "false"),
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
"""For each topic setting, the broker settings that provide its default, strongest first, with the factor to the topic's
unit."""

GROUP_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        obeyed("consumer.assignment.interval.ms", INT, "1000", at_least(0)),
        obeyed("consumer.heartbeat.interval.ms", INT, "5000", at_least(1)),
        obeyed("consumer.session.timeout.ms", INT, "45000", at_least(1)),
        obeyed("errors.deadletterqueue.copy.record.enable", BOOLEAN, "false", unstable=True),
        obeyed("errors.deadletterqueue.topic.name", STRING, "", unstable=True),
        obeyed("share.assignment.interval.ms", INT, "1000", at_least(0)),
        obeyed("share.auto.offset.reset", STRING, "latest", OffsetReset()),
        obeyed("share.delivery.count.limit", INT, "5", at_least(2)),
        obeyed("share.heartbeat.interval.ms", INT, "5000", at_least(1)),
        obeyed("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted")),
        obeyed("share.partition.max.record.locks", INT, "2000", at_least(100)),
        obeyed("share.record.lock.duration.ms", INT, "30000", at_least(1000)),
        obeyed("share.renew.acknowledge.enable", BOOLEAN, "true"),
        obeyed("share.session.timeout.ms", INT, "45000", at_least(1)),
        obeyed("streams.assignment.interval.ms", INT, "1000", at_least(0)),
        obeyed("streams.heartbeat.interval.ms", INT, "5000", at_least(1)),
        obeyed("streams.initial.rebalance.delay.ms", INT, "3000", at_least(0)),
        obeyed("streams.num.standby.replicas", INT, "0", at_least(0)),
        obeyed("streams.session.timeout.ms", INT, "45000", at_least(1)),
    )
}
"""The broker settings that provide the defaults of group settings: those with `group.` in front of the name."""

CLIENT_METRICS_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        harmless("interval.ms", INT, "300000"),
        harmless("match", LIST, ""),
        harmless("metrics", LIST, ""),
    )
}
