"""The page about settings, made from the tables: what each is for, and which do something here."""

from __future__ import annotations

from collections.abc import Iterable

from kpybroker.config.broker_keys import BROKER_KEYS, DYNAMIC_KEYS
from kpybroker.config.documentation import purpose
from kpybroker.config.key import ConfigKey, Effect
from kpybroker.config.security_keys import AUTHORIZER_KEYS
from kpybroker.config.topic_keys import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS, TOPIC_SYNONYMS

INTRODUCTION = """# Configuration

Made by `python -m kpybroker.config.reference > docs/configuration.md`; a test holds it against the code.

Names, types, defaults and ranges are those of Apache Kafka 4.3, and settings with the prefix `kpybroker.` are our own.
Broker settings are given in a property file (`kpybroker serve --config`) or on the command line (`--set name=value`);
a name that is mistyped is refused, and so are settings that contradict each other, as in Kafka. Those that are
*cluster-wide* or *per-broker* can also be changed while the broker runs (`kafka-configs`, IncrementalAlterConfigs),
those of throttles (`*.throttled.rate`, `replica.alter.log.dirs.io.*`) only then; per-broker ones of listeners and TLS
take effect at the next start.
Topic settings are given when a topic is created, or changed later, and take effect at once.
"""
MAPPED = """
## Settings that another one stands for

Each of these is kept by another setting, which promises as much or more; a line at the start says so.
"""
REFUSED = """
## Refused

These ask for protection that this broker does not give: a start with one of them fails, and so does a change. A
value that repeats the default, or is empty, is taken. Where one is in the metadata already, from Apache Kafka, the node
starts, and says so in an ERROR line.
"""
HARMLESS = """
## Accepted without effect

These are known, checked, kept and shown, so that property files and tools work. They change nothing
here: what they are about is not served, or does not exist in this broker, and nothing is less safe without it.
One warning names all that are set.

Names of other software are passed over, as in Apache Kafka, and one warning names them: those that begin with `com`,
`confluent`, `cruise`, `io`, `org`, `rlmm`, `rsm` or `strimzi`. Any other unknown name is taken for a mistake and
refused.
"""


def page() -> str:
    """The whole page, as Markdown."""
    broker = [key for key in BROKER_KEYS.values() if not key.internal]
    changing = [*broker, *DYNAMIC_KEYS.values()]
    topic = list(TOPIC_KEYS.values())
    others = [*GROUP_KEYS.values(), *CLIENT_METRICS_KEYS.values()]
    every = [*topic, *changing, *others]
    refused = [*(key for key in every if key.effect is Effect.REFUSED), *AUTHORIZER_KEYS.values()]
    return "\n".join(
        [
            INTRODUCTION,
            "## Topic settings\n",
            *_table(key for key in topic if key.effect is Effect.OBEYED),
            "\n## Broker settings\n",
            *_table(key for key in changing if key.effect is Effect.OBEYED),
            "\n## Group settings\n",
            "Of one group (`kafka-configs --entity-type groups`), within the limits of the broker's settings.\n",
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
    yield "| setting | type | default | range | changes | what it is for |"
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
