"""Describes each setting in one sentence, for DescribeConfigs and the page about settings.

The sentences are in `documentation.txt`, one `name: sentence` per line. A setting that is only the default or the limit
of another setting has no sentence of its own: it is described with the sentence of the other setting.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from kpybroker.config.key import ConfigKey, Effect
from kpybroker.config.topic_keys import GROUP_KEYS, TOPIC_SYNONYMS

NO_EFFECT = "Accepted and stored, but without effect on this broker."
REFUSED = "Any value but the default is refused:"
BOUND = re.compile(r"group\.(\w+)\.(min|max)\.(.+)")
SMALLEST = {"min": "Smallest", "max": "Largest"}


def documentation(key: ConfigKey) -> str:
    """The purpose of a setting, and how this broker treats it."""
    return " ".join(part for part in (purpose(key.name), here(key)) if part)


def here(key: ConfigKey) -> str:
    """How this broker treats a setting."""
    match key.effect:
        case Effect.HARMLESS:
            return f"{key.doc} {NO_EFFECT}" if key.doc else NO_EFFECT
        case Effect.REFUSED:
            return f"{REFUSED} {key.doc}."
        case _:
            return key.doc or ""


def purpose(name: str) -> str:
    """The purpose of one of Kafka's settings; empty for our own, whose rows contain it."""
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
