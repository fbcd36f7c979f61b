"""Broker settings of tiered storage."""

from __future__ import annotations

from kpybroker.config.key import (
    BOOLEAN,
    DOUBLE,
    INT,
    LONG,
    STRING,
    ConfigKey,
    Mode,
    NotEmpty,
    at_least,
    between,
    harmless,
    refused,
)

CLUSTER_WIDE = Mode.CLUSTER_WIDE

ONLY_TIERS = "Only for tiered storage, which is refused; without it, the other settings of retention apply."
NO_TIERS = (
    "tiered storage is not supported, so all records are kept in log.dirs; remove the setting, and make log.dirs "
    "large enough for all records that retention keeps"
)

TIERED_KEYS: tuple[ConfigKey, ...] = (
    harmless("follower.fetch.last.tiered.offset.enable", BOOLEAN, "false", None, CLUSTER_WIDE),
    harmless("log.local.retention.bytes", LONG, "-2", at_least(-2), CLUSTER_WIDE, doc=ONLY_TIERS),
    harmless("log.local.retention.ms", LONG, "-2", at_least(-2), CLUSTER_WIDE, doc=ONLY_TIERS),
    harmless("remote.fetch.max.wait.ms", INT, "500", at_least(1), CLUSTER_WIDE),
    harmless("remote.list.offsets.request.timeout.ms", LONG, "30000", at_least(1), CLUSTER_WIDE),
    harmless("remote.log.index.file.cache.total.size.bytes", LONG, "1073741824", at_least(1), CLUSTER_WIDE),
    harmless("remote.log.index.file.cache.ttl.ms", LONG, "900000", at_least(-1), internal=True),
    harmless("remote.log.manager.copier.thread.pool.size", INT, "10", at_least(1), CLUSTER_WIDE),
    harmless("remote.log.manager.copy.max.bytes.per.second", LONG, "9223372036854775807", at_least(1), CLUSTER_WIDE),
    harmless("remote.log.manager.copy.quota.window.num", INT, "11", at_least(1)),
    harmless("remote.log.manager.copy.quota.window.size.seconds", INT, "1", at_least(1)),
    harmless("remote.log.manager.expiration.thread.pool.size", INT, "10", at_least(1), CLUSTER_WIDE),
    harmless("remote.log.manager.fetch.max.bytes.per.second", LONG, "9223372036854775807", at_least(1), CLUSTER_WIDE),
    harmless("remote.log.manager.fetch.quota.window.num", INT, "11", at_least(1)),
    harmless("remote.log.manager.fetch.quota.window.size.seconds", INT, "1", at_least(1)),
    harmless("remote.log.manager.follower.thread.pool.size", INT, "2", at_least(1), CLUSTER_WIDE),
    harmless("remote.log.manager.task.interval.ms", LONG, "30000", at_least(1)),
    harmless("remote.log.manager.task.retry.backoff.max.ms", LONG, "30000", at_least(1), internal=True),
    harmless("remote.log.manager.task.retry.backoff.ms", LONG, "500", at_least(1), internal=True),
    harmless("remote.log.manager.task.retry.jitter", DOUBLE, "0.2", between(0, 0.5), internal=True),
    harmless("remote.log.manager.thread.pool.size", INT, "2", at_least(1)),
    harmless("remote.log.metadata.custom.metadata.max.bytes", INT, "128", at_least(0)),
    harmless(
        "remote.log.metadata.manager.class.name",
        STRING,
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager",
        NotEmpty(),
    ),
    harmless("remote.log.metadata.manager.class.path", STRING, None),
    harmless("remote.log.metadata.manager.impl.prefix", STRING, "rlmm.config.", NotEmpty()),
    harmless("remote.log.metadata.manager.listener.name", STRING, None, NotEmpty()),
    harmless("remote.log.reader.max.pending.tasks", INT, "100", at_least(1)),
    harmless("remote.log.reader.threads", INT, "10", at_least(1), CLUSTER_WIDE),
    harmless("remote.log.storage.manager.class.name", STRING, None, NotEmpty()),
    harmless("remote.log.storage.manager.class.path", STRING, None),
    harmless("remote.log.storage.manager.impl.prefix", STRING, "rsm.config.", NotEmpty()),
    refused("remote.log.storage.system.enable", BOOLEAN, "false", doc=NO_TIERS),
)
