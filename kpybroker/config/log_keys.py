"""Broker settings of logs: the defaults of topics, and the maintenance of log directories."""

from __future__ import annotations

from kpybroker.config.key import (
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    STRING,
    ConfigKey,
    Mode,
    Positive,
    at_least,
    between,
    harmless,
    mapped,
    obeyed,
    one_of,
)

CLUSTER_WIDE = Mode.CLUSTER_WIDE
PER_BROKER = Mode.PER_BROKER

FSYNC_ALWAYS = (
    "Any other value than the default has the effect of kpybroker.fsync=always: a record is on disk before it is "
    "acknowledged."
)

CORDONED = (
    "* stands for all of them. A broker whose directories are all cordoned is not chosen for new partitions. A change "
    "takes effect at once. Spell the paths as in log.dirs."
)

LOG_KEYS: tuple[ConfigKey, ...] = (
    harmless("alter.log.dirs.replication.quota.window.num", INT, "11", at_least(1)),
    harmless("alter.log.dirs.replication.quota.window.size.seconds", INT, "1", at_least(1)),
    obeyed("compression.gzip.level", INT, "-1", between(1, 9, also=-1), CLUSTER_WIDE),
    obeyed("compression.lz4.level", INT, "9", between(1, 17), CLUSTER_WIDE),
    obeyed(
        "compression.type",
        STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        CLUSTER_WIDE,
    ),
    obeyed("compression.zstd.level", INT, "3", between(-131072, 22), CLUSTER_WIDE),
    obeyed("cordoned.log.dirs", LIST, "", None, PER_BROKER, doc=CORDONED),
    obeyed("log.cleaner.backoff.ms", LONG, "15000", at_least(0), CLUSTER_WIDE),
    obeyed("log.cleaner.dedupe.buffer.size", LONG, "134217728", None, CLUSTER_WIDE),
    obeyed("log.cleaner.delete.retention.ms", LONG, "86400000", at_least(0), CLUSTER_WIDE),
    obeyed("log.cleaner.enable", BOOLEAN, "true"),
    obeyed("log.cleaner.io.buffer.load.factor", DOUBLE, "0.9", Positive(), CLUSTER_WIDE),
    obeyed("log.cleaner.io.buffer.size", INT, "524288", at_least(0), CLUSTER_WIDE),
    obeyed("log.cleaner.io.max.bytes.per.second", DOUBLE, "1.7976931348623157E308", Positive(), CLUSTER_WIDE),
    obeyed("log.cleaner.max.compaction.lag.ms", LONG, "9223372036854775807", at_least(1), CLUSTER_WIDE),
    obeyed("log.cleaner.min.cleanable.ratio", DOUBLE, "0.5", between(0, 1), CLUSTER_WIDE),
    obeyed("log.cleaner.min.compaction.lag.ms", LONG, "0", at_least(0), CLUSTER_WIDE),
    harmless("log.cleaner.threads", INT, "1", at_least(0), CLUSTER_WIDE),
    obeyed("log.cleanup.policy", LIST, "delete", one_of("compact", "delete"), CLUSTER_WIDE),
    obeyed("log.dir", LIST, "/tmp/kafka-logs"),
    harmless("log.dir.failure.timeout.ms", LONG, "30000", at_least(1)),
    obeyed("log.dirs", LIST, None),
    mapped("log.flush.interval.messages", LONG, "9223372036854775807", at_least(1), CLUSTER_WIDE, doc=FSYNC_ALWAYS),
    mapped("log.flush.interval.ms", LONG, None, None, CLUSTER_WIDE, doc=FSYNC_ALWAYS),
    obeyed("log.flush.offset.checkpoint.interval.ms", INT, "60000", at_least(0)),
    mapped("log.flush.scheduler.interval.ms", LONG, "9223372036854775807", doc=FSYNC_ALWAYS),
    harmless("log.flush.start.offset.checkpoint.interval.ms", INT, "60000", at_least(0)),
    obeyed("log.index.interval.bytes", INT, "4096", at_least(0), CLUSTER_WIDE),
    obeyed("log.index.size.max.bytes", INT, "10485760", at_least(4), CLUSTER_WIDE),
    obeyed("log.initial.task.delay.ms", LONG, "30000", at_least(0), internal=True),
    obeyed("log.message.timestamp.after.max.ms", LONG, "3600000", at_least(0), CLUSTER_WIDE),
    obeyed("log.message.timestamp.before.max.ms", LONG, "9223372036854775807", at_least(0), CLUSTER_WIDE),
    obeyed("log.message.timestamp.type", STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"), CLUSTER_WIDE),
    harmless("log.preallocate", BOOLEAN, "false", None, CLUSTER_WIDE),
    obeyed("log.retention.bytes", LONG, "-1", None, CLUSTER_WIDE),
    obeyed("log.retention.check.interval.ms", LONG, "300000", at_least(1)),
    obeyed("log.retention.hours", INT, "168"),
    obeyed("log.retention.minutes", INT, None),
    obeyed("log.retention.ms", LONG, None, None, CLUSTER_WIDE),
    obeyed("log.roll.hours", INT, "168", at_least(1)),
    obeyed("log.roll.jitter.hours", INT, "0", at_least(0)),
    obeyed("log.roll.jitter.ms", LONG, None, None, CLUSTER_WIDE),
    obeyed("log.roll.ms", LONG, None, None, CLUSTER_WIDE),
    obeyed("log.segment.bytes", INT, "1073741824", at_least(1048576), CLUSTER_WIDE),
    obeyed("log.segment.delete.delay.ms", LONG, "60000", at_least(0), CLUSTER_WIDE),
    obeyed("message.max.bytes", INT, "1048588", at_least(0), CLUSTER_WIDE),
    harmless("num.recovery.threads.per.data.dir", INT, "2", at_least(1), CLUSTER_WIDE),
    harmless("num.replica.alter.log.dirs.threads", INT, None),
)
