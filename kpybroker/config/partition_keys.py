"""The settings with which a topic gets fewer partitions. They are not stored as settings of the topic; see
`metadata/retirements.py`."""

from __future__ import annotations

from collections.abc import Mapping

from kpybroker.config.key import INT, LIST, LONG, ConfigKey, at_least, between, obeyed

IN_USE = "kpybroker.partitions"
GRACE = "kpybroker.partitions.grace.ms"
EMPTY = "kpybroker.partitions.empty"
PARTITION_KEYS: Mapping[str, ConfigKey] = {
    key.name: key
    for key in (
        obeyed(
            IN_USE,
            INT,
            None,
            at_least(1),
            doc="How many partitions of the topic are in use. The others are retired: their records are in the topic "
            "<topic>.retired. By default, all partitions are in use.",
        ),
        obeyed(
            GRACE,
            LONG,
            "600000",
            between(0, 10**15),
            doc="For how long the retired partitions still accept records, from producers that have not refreshed "
            "their metadata yet.",
        ),
        obeyed(
            EMPTY,
            LIST,
            "",
            doc="The retired partitions that have no records left, kept by the brokers. When all are empty, "
            "<topic>.retired is no longer listed.",
        ),
    )
}
