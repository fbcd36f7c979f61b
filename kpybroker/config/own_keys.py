"""Broker settings that only kpybroker has. They are never settings of a topic, and never a ConfigRecord."""

from __future__ import annotations

from kpybroker.config.key import INT, STRING, ConfigKey, at_least, between, obeyed, one_of

OWN_KEYS: tuple[ConfigKey, ...] = (
    obeyed(
        "kpybroker.cluster.id",
        STRING,
        None,
        doc="The cluster id of a new directory, 22 characters of base64. Without it, it is made of "
        "controller.quorum.voters, so that all nodes of a new cluster have the same, or drawn where there are none.",
    ),
    obeyed(
        "kpybroker.fsync",
        STRING,
        "page-cache",
        one_of("page-cache", "always"),
        doc="page-cache: acknowledged in the page caches of the in-sync replicas; always: acknowledged on their disks.",
    ),
    obeyed(
        "kpybroker.http.host",
        STRING,
        "127.0.0.1",
        doc="Where kpybroker.http.port listens; 0.0.0.0 for probes and scrapes from elsewhere.",
    ),
    obeyed(
        "kpybroker.http.port",
        INT,
        None,
        between(0, 65535),
        doc="Serve /metrics, /healthz and /readyz over HTTP on this port, 0 for a free one. Nothing where not given.",
    ),
    obeyed(
        "kpybroker.initial.controllers",
        STRING,
        None,
        doc="Who votes at first where controller.quorum.voters is not set, as kafka-storage is told: standalone (this "
        "controller alone), none (it follows the controllers of controller.quorum.bootstrap.servers, and may be "
        "added later), or id@host:port:directory-id,... for several. Read when a directory is formatted; standalone "
        "asks those controllers first, and refuses where they have a cluster. Without it standalone, or none where "
        "controller.quorum.auto.join.enable is set.",
    ),
    obeyed(
        "kpybroker.max.open.files",
        INT,
        "512",
        at_least(16),
        doc="Log segments kept open at once, in all log.dirs together; the one used least recently is closed first.",
    ),
    obeyed(
        "kpybroker.max.partitions",
        INT,
        "100000",
        at_least(1),
        doc="Partitions of the cluster; a CreateTopics or CreatePartitions beyond it is refused.",
    ),
    obeyed(
        "kpybroker.record.validation",
        STRING,
        "full",
        one_of("full", "count"),
        doc="full: every batch that is produced is opened and its records are checked, as by Apache Kafka. count: only "
        "whether so many records can be in it, which takes less time; a faulty producer can then store batches that "
        "no consumer can read, and at which consumers of the partition stop.",
    ),
)
