"""Broker settings that only kpybroker has. They never apply to a topic and are never in a ConfigRecord."""

from __future__ import annotations

from kpybroker.config.key import INT, LIST, LONG, STRING, ConfigKey, at_least, between, obeyed, one_of

JSON = "json"
OWN_KEYS: tuple[ConfigKey, ...] = (
    obeyed(
        "kpybroker.api.versions",
        LIST,
        "",
        doc="For tests of clients: the versions of some APIs that this broker serves to them, such as "
        "Fetch:4-11,ShareFetch:none, so that it behaves like an older broker. The others are served as always.",
    ),
    obeyed(
        "kpybroker.audit.format",
        STRING,
        "text",
        one_of("text", JSON),
        doc="The format of the lines of the logger kpybroker.authorizer: text in Kafka's words, or JSON. There is a "
        "line for each refusal and, at DEBUG, for each grant.",
    ),
    obeyed(
        "kpybroker.cluster.id",
        STRING,
        None,
        doc="The cluster id of a new directory, 22 characters of base64. By default it is derived from "
        "controller.quorum.voters, so that all nodes of a new cluster have the same id; without voters it is random.",
    ),
    obeyed(
        "kpybroker.delivery.broker.max.pending",
        LONG,
        "20000000",
        at_least(1),
        doc="Maximum number of pending scheduled records in the partitions of delivery logs that this broker leads. "
        "Each takes 12 bytes of memory.",
    ),
    obeyed(
        "kpybroker.fsync",
        STRING,
        "page-cache",
        one_of("page-cache", "always"),
        doc="Whether a record is acknowledged when it is in the page caches of the in-sync replicas (page-cache) or on "
        "their disks (always).",
    ),
    obeyed(
        "kpybroker.http.host",
        STRING,
        "127.0.0.1",
        doc="Address that kpybroker.http.port listens on; 0.0.0.0 for probes and scrapes from other hosts.",
    ),
    obeyed(
        "kpybroker.http.port",
        INT,
        None,
        between(0, 65535),
        doc="Serve /metrics, /healthz and /readyz over HTTP on this port, 0 for a free one. Not served by default.",
    ),
    obeyed(
        "kpybroker.http.tls.listener",
        STRING,
        None,
        doc="Serve kpybroker.http.port over TLS, with the settings of the listener of this name: "
        "listener.name.<listener>.ssl.*, else ssl.*. It may be one of listeners, or another name. "
        "By default, there is no TLS.",
    ),
    obeyed(
        "kpybroker.http.token.file",
        STRING,
        None,
        doc="A file with a token of 16 to 4096 characters, which other users cannot read. A request for one of "
        "kpybroker.http.token.paths needs it: Authorization: Bearer TOKEN. The file is read again when it changes.",
    ),
    obeyed(
        "kpybroker.http.token.paths",
        LIST,
        "/metrics",
        one_of("/metrics", "/healthz", "/readyz"),
        doc="The paths that need the token of kpybroker.http.token.file. Probes of Kubernetes have no token.",
    ),
    obeyed(
        "kpybroker.initial.controllers",
        STRING,
        None,
        doc="The initial voters if controller.quorum.voters is not set, as in kafka-storage format: standalone (this "
        "controller alone), none (it follows the controllers of controller.quorum.bootstrap.servers, and may be added "
        "later), or id@host:port:directory-id,... for several. Used when a directory is formatted; with standalone, "
        "a node first queries these controllers, and does not start if they have a cluster. The default is standalone, "
        "or none if controller.quorum.auto.join.enable is set.",
    ),
    obeyed(
        "kpybroker.max.open.files",
        INT,
        "512",
        at_least(16),
        doc="Maximum number of open log segments in all log.dirs; the least recently used one is closed first.",
    ),
    obeyed(
        "kpybroker.max.partitions",
        INT,
        "100000",
        at_least(1),
        doc="Maximum number of partitions in the cluster; a CreateTopics or CreatePartitions beyond it is refused.",
    ),
    obeyed(
        "kpybroker.record.validation",
        STRING,
        "full",
        one_of("full", "count"),
        doc="full: every produced batch is opened and its records are checked, as in Apache Kafka. count: the broker "
        "only checks whether the batch can have that many records, which takes less time; a faulty producer can then "
        "store batches that no consumer can read, so that consumers of the partition stop there.",
    ),
)
