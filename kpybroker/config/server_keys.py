"""Broker settings of sockets, requests, quotas and metrics."""

from __future__ import annotations

from kpybroker.config.key import CLASS, INT, LIST, LONG, STRING, ConfigKey, HostCounts, Mode, at_least, idle, used

CLUSTER_WIDE = Mode.CLUSTER_WIDE
PER_BROKER = Mode.PER_BROKER

SERVER_KEYS: tuple[ConfigKey, ...] = (
    used("advertised.listeners", LIST, None),
    idle("background.threads", INT, "10", at_least(1), CLUSTER_WIDE),
    idle("client.quota.callback.class", CLASS, None),
    idle("config.providers", LIST, "", None, CLUSTER_WIDE),
    used(
        "connections.max.idle.ms",
        LONG,
        "600000",
        doc="Also for replies of which nothing is read, and for half a frame that gets less than 1 KB a second.",
    ),
    idle("delete.records.purgatory.purge.interval.requests", INT, "1"),
    used("fetch.max.bytes", INT, "57671680", at_least(1024)),
    idle("fetch.purgatory.purge.interval.requests", INT, "1000"),
    idle("kafka.metrics.polling.interval.secs", INT, "10", at_least(1)),
    idle("kafka.metrics.reporters", LIST, ""),
    used(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        None,
        PER_BROKER,
    ),
    used("listeners", LIST, "PLAINTEXT://:9092", None, PER_BROKER),
    used("max.connection.creation.rate", INT, "2147483647", at_least(0), CLUSTER_WIDE),
    used(
        "max.connections",
        INT,
        "2147483647",
        at_least(0),
        CLUSTER_WIDE,
        doc="More are closed, where Kafka lets them wait; nodes of the cluster are let in. Controllers' listeners "
        "count apart. listener.name.<listener>.max.connections limits one listener.",
    ),
    used("max.connections.per.ip", INT, "2147483647", at_least(0), CLUSTER_WIDE),
    used(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        HostCounts(),
        CLUSTER_WIDE,
        doc="Names other than localhost are not looked up.",
    ),
    used("max.incremental.fetch.session.cache.slots", INT, "1000", at_least(0)),
    used("max.request.partition.size.limit", INT, "2000", at_least(1)),
    idle("metric.reporters", LIST, "org.apache.kafka.common.metrics.JmxReporter", None, CLUSTER_WIDE),
    idle("metrics.num.samples", INT, "2", at_least(1)),
    idle("metrics.recording.level", STRING, "INFO"),
    idle("metrics.sample.window.ms", LONG, "30000", at_least(1)),
    idle("num.io.threads", INT, "8", at_least(1), CLUSTER_WIDE),
    idle("num.network.threads", INT, "3", at_least(1), CLUSTER_WIDE),
    idle("producer.purgatory.purge.interval.requests", INT, "1000"),
    used(
        "queued.max.request.bytes",
        LONG,
        "-1",
        doc="Counts receive buffers, which grow as frames come; 512 MB where there is no limit. Once others wait, "
        "a connection whose frame would take more than 30 s is closed.",
    ),
    idle("queued.max.requests", INT, "500", at_least(1)),
    used("quota.window.num", INT, "11", at_least(1)),
    used("quota.window.size.seconds", INT, "1", at_least(1)),
    used("request.timeout.ms", INT, "30000"),
    idle("socket.connection.setup.timeout.max.ms", LONG, "30000"),
    idle("socket.connection.setup.timeout.ms", LONG, "10000"),
    idle("socket.listen.backlog.size", INT, "50", at_least(1)),
    idle("socket.receive.buffer.bytes", INT, "102400"),
    used("socket.request.max.bytes", INT, "104857600", at_least(1)),
    idle("socket.send.buffer.bytes", INT, "102400"),
)
