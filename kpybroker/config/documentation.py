"""What each setting is for, in a sentence: for DescribeConfigs and the page about settings.

The sentences stand in `documentation.txt`, one `name: sentence` a line. What only gives the default, or the range, of
another setting has none of its own: it is told by the other's.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from kpybroker.config.key import ConfigKey, Effect
from kpybroker.config.topic_keys import GROUP_KEYS, TOPIC_SYNONYMS

NO_EFFECT = "Accepted and kept; without effect on this broker."
REFUSED = "Any value but the default is refused:"
BOUND = re.compile(r"group\.(\w+)\.(min|max)\.(.+)")
SMALLEST = {"min": "Smallest", "max": "Largest"}


def documentation(key: ConfigKey) -> str:
    """What the setting is for, then what is particular about it here."""
    return " ".join(part for part in (purpose(key.name), here(key)) if part)


def here(key: ConfigKey) -> str:
    """What is particular about a setting on this broker."""
    match key.effect:
        case Effect.HARMLESS:
            return f"{key.doc} {NO_EFFECT}" if key.doc else NO_EFFECT
        case Effect.REFUSED:
            return f"{REFUSED} {key.doc}."
        case _:
            return key.doc or ""


def purpose(name: str) -> str:
    """What a setting of Kafka's is for; empty for our own, whose row says it."""
    own = _sentences().get(name)
    if own is not None:
        return own
    if name in _defaults_of_topics():
        topic = _defaults_of_topics()[name]
        return f"The default of topics' {topic}. {_sentences()[topic]}"
    group = name.removeprefix("group.")
    if group != name and group in GROUP_KEYS:
        return f"The default of groups' {group}. {_sentences()[group]}"
    bound = BOUND.fullmatch(name)
    if bound is not None and f"{bound[1]}.{bound[3]}" in GROUP_KEYS:
        return f"{SMALLEST[bound[2]]} {bound[1]}.{bound[3]} that a group may be given."
    return ""


@cache
def _sentences() -> dict[str, str]:
    text = files("kpybroker.config").joinpath("documentation.txt").read_text("utf-8")
    lines = (line.partition(": ") for line in text.splitlines() if not line.startswith("#"))
    return {name: sentence for name, _, sentence in lines}


@cache
def _defaults_of_topics() -> dict[str, str]:
    return {broker: topic for topic, synonyms in TOPIC_SYNONYMS.items() for broker, _ in synonyms}
