"""Broker settings that only kpybroker has. They are never settings of a topic, and never a ConfigRecord."""

from __future__ import annotations

from kpybroker.config.key import INT, STRING, ConfigKey, at_least, one_of, used

OWN_KEYS: tuple[ConfigKey, ...] = (
    used(
        "kpybroker.cluster.id",
        STRING,
        None,
        doc="The cluster id of a new directory, 22 characters of base64. Without it, it is made of "
        "controller.quorum.voters, so that all nodes of a new cluster have the same, or drawn where there are none.",
    ),
    used(
        "kpybroker.fsync",
        STRING,
        "page-cache",
        one_of("page-cache", "always"),
        doc="page-cache: acknowledged in the page caches of the in-sync replicas; always: acknowledged on their disks.",
    ),
    used(
        "kpybroker.max.open.files",
        INT,
        "512",
        at_least(16),
        doc="Log segments and indexes kept open at once; the one used least recently is closed first.",
    ),
    used(
        "kpybroker.max.partitions",
        INT,
        "200000",
        at_least(1),
        doc="Partitions of the cluster; a CreateTopics or CreatePartitions beyond it is refused.",
    ),
)
