"""The page about settings, made from the tables: what each is for, and which do something here."""

from __future__ import annotations

from collections.abc import Iterable

from kpybroker.config.broker_keys import BROKER_KEYS, DYNAMIC_KEYS
from kpybroker.config.documentation import purpose
from kpybroker.config.key import ConfigKey
from kpybroker.config.topic_keys import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS, TOPIC_SYNONYMS

INTRODUCTION = """# Configuration

Made by `python -m kpybroker.config.reference > docs/configuration.md`; a test holds it against the code.

Names, types, defaults and ranges are those of Apache Kafka 4.3, and settings with the prefix `kpybroker.` are our own.
Broker settings are given in a property file (`kpybroker serve --config`) or on the command line (`--set name=value`);
a name that is not known is refused, and so are settings that contradict each other, as in Kafka. Those that are
*cluster-wide* or *per-broker* can also be changed while the broker runs (`kafka-configs`, IncrementalAlterConfigs),
those of throttles (`*.throttled.rate`, `replica.alter.log.dirs.io.*`) only then; per-broker ones of listeners and TLS
take effect at the next start.
Topic settings are given when a topic is created, or changed later, and take effect at once.
"""
WITHOUT_EFFECT = """
## Accepted without effect

These are known, checked, kept and shown, so that property files and tools work. They change nothing
here: what they are about is not served, or does not exist in this broker. A warning is logged where one is set.
"""


def page() -> str:
    """The whole page, as Markdown."""
    broker = [key for key in BROKER_KEYS.values() if not key.internal]
    changing = [*broker, *DYNAMIC_KEYS.values()]
    topic = list(TOPIC_KEYS.values())
    others = [*GROUP_KEYS.values(), *CLIENT_METRICS_KEYS.values()]
    return "\n".join(
        [
            INTRODUCTION,
            "## Topic settings\n",
            *_table(key for key in topic if key.effect),
            "\n## Broker settings\n",
            *_table(key for key in changing if key.effect),
            "\n## Group settings\n",
            "Of one group (`kafka-configs --entity-type groups`), within the limits of the broker's settings.\n",
            *_table(key for key in GROUP_KEYS.values() if key.effect),
            WITHOUT_EFFECT,
            "### Of topics\n",
            *_table(key for key in topic if not key.effect),
            "\n### Of brokers\n",
            *_table(key for key in changing if not key.effect),
            "\n### Of groups and client metrics\n",
            *_table(key for key in others if not key.effect),
            "",
        ]
    )


def _table(keys: Iterable[ConfigKey]) -> Iterable[str]:
    yield "| setting | type | default | range | changes | what it is for |"
    yield "|---|---|---|---|---|---|"
    for key in keys:
        of_broker = key.name in BROKER_KEYS or key.name in DYNAMIC_KEYS
        falls_back = [name for name, _ in TOPIC_SYNONYMS.get(key.name, ()) if name != key.name]
        remarks = [purpose(key.name), key.doc or ""]
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
