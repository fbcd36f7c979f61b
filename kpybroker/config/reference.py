"""Generates the page about settings from the tables: their purpose, and whether they have an effect here."""

from __future__ import annotations

from collections.abc import Iterable

from kpybroker.config.broker_keys import BROKER_KEYS, DYNAMIC_KEYS
from kpybroker.config.documentation import purpose
from kpybroker.config.key import ConfigKey, Effect
from kpybroker.config.partition_keys import PARTITION_KEYS
from kpybroker.config.security_keys import AUTHORIZER_KEYS
from kpybroker.config.topic_keys import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS, TOPIC_SYNONYMS
from kpybroker.config.view_keys import VIEW_KEYS

INTRODUCTION = """# Configuration

`python -m kpybroker.config.reference > docs/configuration.md` generates this page; a test compares it with the code.

Names, types, defaults and ranges are those of Apache Kafka 4.3; settings with the prefix `kpybroker.` are our own. Set
broker settings in a property file (`kpybroker serve --config`) or on the command line (`--set name=value`). The broker
refuses unknown names and, as Kafka does, settings that contradict each other. *Cluster-wide* and *per-broker* settings
can also be changed while the broker runs (`kafka-configs`, IncrementalAlterConfigs); throttles (`*.throttled.rate`,
`replica.alter.log.dirs.io.*`) can only be set in this way. Per-broker settings of listeners take effect at the
next start; those of TLS are read from the file alone. Topic settings are set when a topic is created, or changed
later, and take effect at once.

The settings `errors.deadletterqueue.*` belong to dead letters of share groups (KIP-1191), which Apache Kafka 4.3 does
not have: they are shown and can be changed only with `unstable.feature.versions.enable=true` on all nodes.
"""
VIEWS = """
## View settings

A topic that is created with these is a view of another topic ([views](views.md)). It has no other settings of its own.
"""
PARTITIONS = """
## Settings for fewer partitions

With these, a topic uses only some of its partitions ([fewer partitions](fewer-partitions.md)).
"""
MAPPED = """
## Replaced by another setting

Instead of each of these, the broker uses another setting with the same or a stronger guarantee, and logs this at
startup.
"""
REFUSED = """
## Refused

These require a protection that this broker does not provide: a node does not start with one of them, and a change is
refused. An empty value and the default are accepted. If such a setting is already in the metadata, from Apache Kafka,
the node starts and logs an ERROR line.
"""
HARMLESS = """
## Accepted without effect

The broker validates, stores and shows these, so that property files and tools work, but they have no effect: they
configure parts that this broker does not have, and nothing is less safe without those. One warning at startup lists all
of them that are set.

As in Apache Kafka, settings of other software are ignored, and one warning lists them. Their names begin with `com`,
`confluent`, `cruise`, `io`, `org`, `rlmm`, `rsm` or `strimzi`. Any other unknown name is refused as a mistake.
"""


def page() -> str:
    """The whole page, as Markdown."""
    broker = [key for key in BROKER_KEYS.values() if not key.internal]
    changing = [*broker, *DYNAMIC_KEYS.values(), *AUTHORIZER_KEYS.values()]
    topic = list(TOPIC_KEYS.values())
    others = [*GROUP_KEYS.values(), *CLIENT_METRICS_KEYS.values()]
    every = [*topic, *changing, *others]
    refused = [key for key in every if key.effect is Effect.REFUSED]
    return "\n".join(
        [
            INTRODUCTION,
            "## Topic settings\n",
            *_table(key for key in topic if key.effect is Effect.OBEYED),
            VIEWS,
            *_table(VIEW_KEYS.values()),
            PARTITIONS,
            *_table(PARTITION_KEYS.values()),
            "\n## Broker settings\n",
            *_table(key for key in changing if key.effect is Effect.OBEYED),
            "\n## Group settings\n",
            "Settings of one group (`kafka-configs --entity-type groups`), within the limits of the broker settings.\n",
            *_table(key for key in GROUP_KEYS.values() if key.effect is Effect.OBEYED),
            MAPPED,
            *_table(key for key in every if key.effect is Effect.MAPPED),
            REFUSED,
            *_table(sorted(refused, key=lambda key: key.name)),
            HARMLESS,
            "### Of topics\n",
            *_table(key for key in topic if key.effect is Effect.HARMLESS),
            "\n### Of brokers\n",
            *_table(key for key in changing if key.effect is Effect.HARMLESS),
            "\n### Of groups and client metrics\n",
            *_table(key for key in others if key.effect is Effect.HARMLESS),
            "",
        ]
    )


def _table(keys: Iterable[ConfigKey]) -> Iterable[str]:
    yield "| setting | type | default | range | changes | purpose |"
    yield "|---|---|---|---|---|---|"
    for key in keys:
        of_broker = key.name in BROKER_KEYS or key.name in DYNAMIC_KEYS
        falls_back = [name for name, _ in TOPIC_SYNONYMS.get(key.name, ()) if name != key.name]
        doc = key.doc or ""
        remarks = [purpose(key.name), f"{doc[:1].upper()}{doc[1:]}." if key.effect is Effect.REFUSED else doc]
        if falls_back and key.name in TOPIC_KEYS:
            remarks.append(f"Broker: {', '.join(f'`{name}`' for name in falls_back)}.")
        default = "" if key.default is None else f"`{key.default}`" if key.default else "(empty)"
        cells = (
            f"`{key.name}`",
            key.kind.name.lower(),
            default,
            str(key.check or ""),
            key.mode.value if of_broker else "",
            " ".join(remark for remark in remarks if remark).replace("|", "\\|"),
        )
        yield "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print(page(), end="")
