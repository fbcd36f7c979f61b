"""Broker settings of sockets, requests, quotas and metrics."""

from __future__ import annotations

from kpybroker.config.key import (
    CLASS,
    INT,
    LIST,
    LONG,
    STRING,
    ConfigKey,
    HostCounts,
    Mode,
    at_least,
    harmless,
    obeyed,
    refused,
)

CLUSTER_WIDE = Mode.CLUSTER_WIDE
PER_BROKER = Mode.PER_BROKER

NO_CALLBACK = (
    "Java classes are not run, so it would not limit clients; remove the setting, and set quotas with kafka-configs"
)
NO_CONFIG_PROVIDERS = (
    "Java classes are not run, so ${provider:path:key} in a value, such as a password, would be used literally; "
    "remove the setting, and write the actual values"
)

SERVER_KEYS: tuple[ConfigKey, ...] = (
    obeyed("advertised.listeners", LIST, None),
    harmless("background.threads", INT, "10", at_least(1), CLUSTER_WIDE),
    refused("client.quota.callback.class", CLASS, None, doc=NO_CALLBACK),
    refused("config.providers", LIST, "", None, CLUSTER_WIDE, doc=NO_CONFIG_PROVIDERS),
    obeyed(
        "connections.max.idle.ms",
        LONG,
        "600000",
        doc="A client that reads no responses, or that sends a frame at less than 1 KB per second, counts as idle.",
    ),
    harmless("delete.records.purgatory.purge.interval.requests", INT, "1"),
    obeyed("fetch.max.bytes", INT, "57671680", at_least(1024)),
    harmless("fetch.purgatory.purge.interval.requests", INT, "1000"),
    harmless("kafka.metrics.polling.interval.secs", INT, "10", at_least(1)),
    harmless("kafka.metrics.reporters", LIST, ""),
    obeyed(
        "listener.security.protocol.map",
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        None,
        PER_BROKER,
    ),
    obeyed("listeners", LIST, "PLAINTEXT://:9092", None, PER_BROKER),
    obeyed("max.connection.creation.rate", INT, "2147483647", at_least(0), CLUSTER_WIDE),
    obeyed(
        "max.connections",
        INT,
        "2147483647",
        at_least(0),
        CLUSTER_WIDE,
        doc="Connections beyond the limit are closed (in Kafka, they wait), except those from nodes of the cluster. "
        "Controllers' listeners are counted separately. listener.name.<listener>.max.connections limits one listener.",
    ),
    obeyed("max.connections.per.ip", INT, "2147483647", at_least(0), CLUSTER_WIDE),
    obeyed(
        "max.connections.per.ip.overrides",
        STRING,
        "",
        HostCounts(),
        CLUSTER_WIDE,
        doc="Names other than localhost are not resolved.",
    ),
    obeyed("max.incremental.fetch.session.cache.slots", INT, "1000", at_least(0)),
    obeyed("max.request.partition.size.limit", INT, "2000", at_least(1)),
    harmless("metric.reporters", LIST, "org.apache.kafka.common.metrics.JmxReporter", None, CLUSTER_WIDE),
    harmless("metrics.num.samples", INT, "2", at_least(1)),
    harmless("metrics.recording.level", STRING, "INFO"),
    harmless("metrics.sample.window.ms", LONG, "30000", at_least(1)),
    harmless("num.io.threads", INT, "8", at_least(1), CLUSTER_WIDE),
    harmless("num.network.threads", INT, "3", at_least(1), CLUSTER_WIDE),
    harmless("producer.purgatory.purge.interval.requests", INT, "1000"),
    obeyed(
        "queued.max.request.bytes",
        LONG,
        "-1",
        doc="Limits the sum of all receive buffers, which grow as frames arrive; -1 means 512 MB. While others wait, a "
        "connection whose frame would take more than 30 s is closed.",
    ),
    harmless("queued.max.requests", INT, "500", at_least(1)),
    obeyed("quota.window.num", INT, "11", at_least(1)),
    obeyed("quota.window.size.seconds", INT, "1", at_least(1)),
    obeyed("request.timeout.ms", INT, "30000"),
    harmless("socket.connection.setup.timeout.max.ms", LONG, "30000"),
    harmless("socket.connection.setup.timeout.ms", LONG, "10000"),
    harmless("socket.listen.backlog.size", INT, "50", at_least(1)),
    harmless("socket.receive.buffer.bytes", INT, "102400"),
    obeyed(
        "socket.request.max.bytes",
        INT,
        "104857600",
        at_least(1),
        doc="Requests without records may have at most 32 MB.",
    ),
    harmless("socket.send.buffer.bytes", INT, "102400"),
)
