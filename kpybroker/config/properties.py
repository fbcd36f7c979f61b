"""Parses properties files by Java's rules, and `--set name=value`. Unknown names are refused with a suggestion."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from kpybroker.config.broker_keys import BROKER_KEYS
from kpybroker.config.effect import BROKER, key_of, without_prefix
from kpybroker.config.key import SHOWN_MAX, Effect
from kpybroker.config.security_keys import AUTHORIZER_KEYS
from kpybroker.config.topic_keys import TOPIC_SYNONYMS
from kpybroker.errors import ConfigError

FILE_BYTES_MAX = 1 << 20
ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
BLANK = " \t\f"
SUGGESTION_CUTOFF = 0.6
OTHERS = frozenset({"com", "confluent", "cruise", "io", "org", "rlmm", "rsm", "strimzi"})
"""The first words in the names of other software's settings and Java packages. Apache Kafka ignores all unknown names;
here, an unknown name that does not belong to other software is an error."""
NAME_MAX = 200
"""Longer names are not compared."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
OTHERWISE = {other: topic for topic, others in TOPIC_SYNONYMS.items() for other, _ in others} | {
    topic: others[0][0] for topic, others in TOPIC_SYNONYMS.items()
}
"""Settings with different names for topics and brokers, by both names."""
REMOVED = {
    "zookeeper.connect": "ZooKeeper was removed in Kafka 4.0; the node stores its metadata itself",
    "zookeeper.connection.timeout.ms": "ZooKeeper was removed in Kafka 4.0",
    "inter.broker.protocol.version": "removed in Kafka 4.0; replaced by the metadata version",
    "log.message.format.version": "removed in Kafka 4.0; the record format is v2",
    "log.message.timestamp.difference.max.ms": "use log.message.timestamp.before.max.ms and .after.max.ms",
    "offsets.commit.required.acks": "removed in Kafka 4.0; commits always wait for all in-sync replicas",
    "delegation.token.master.key": "use delegation.token.secret.key",
}


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Parse a properties file: comments (# !), `=`, `:` or blank as separator, continued lines, escapes.

    If a name occurs twice, the last value takes effect, as in Java. Raises ConfigError with `source` and the number of
    the line that cannot be parsed.
    """
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"{source}: larger than {FILE_BYTES_MAX} bytes; is it a properties file?")
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        name, value = _split(line)
        try:
            found[_unescape(name)] = _unescape(value)
        except ValueError as error:
            raise ConfigError(f"{source}, line {number}: {error}") from None
    return found


def parse_setting(text: str) -> tuple[str, str]:
    """Parse one `name=value` of a command line."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"cannot read the setting {shown_name(text)}: write name=value")
    return name.strip(), value.strip()


def check_names(names: Iterable[str], source: str) -> None:
    """Raise ConfigError for the first name that belongs neither to a broker setting nor to other software."""
    for name in names:
        setting = without_prefix(name)
        if setting not in BROKER_KEYS and setting not in AUTHORIZER_KEYS and not is_of_others(name):
            raise ConfigError(f"{source}: unknown setting {shown_name(setting)}{_hint(setting)}")


def shown_name(name: str) -> str:
    """An unknown name, for a message. Text that does not look like a name is not shown, because it may be part of a
    secret, such as a line of a key after a missing backslash. If it begins with a known setting, the setting is
    shown."""
    form = NAME.match(name)
    begin = "" if form is None else form[0]
    if begin == name and len(name) <= NAME_MAX and ("." in name or did_you_mean(name, BROKER_KEYS)):
        return name
    if without_prefix(begin) in BROKER_KEYS:
        return f"{begin}[hidden]"
    return f"[hidden, {len(name)} characters]"


def is_of_others(name: str) -> bool:
    """Whether an unknown name is a setting of other software, which Apache Kafka ignores."""
    first, dot, _ = name.partition(".")
    return bool(dot) and first in OTHERS


def check_protection(properties: Mapping[str, str], source: str) -> None:
    """Raise ConfigError, with the remedy, for all settings that require a protection that is not available here."""
    found: dict[str, list[str]] = {}
    for name, text in properties.items():
        key = key_of(BROKER, name)
        if key is not None and key.effect is Effect.REFUSED:
            key.parse(text)
            if key.asks(text):
                shown = "[hidden]" if key.sensitive else text[:SHOWN_MAX]
                found.setdefault(key.doc or "", []).append(f"{name}={shown}")
    if found:
        said = (f"{', '.join(settings)} cannot be applied: {why}" for why, settings in found.items())
        raise ConfigError(f"{source}: {'. '.join(said)}")


def _hint(name: str) -> str:
    if name in REMOVED:
        return f" ({REMOVED[name]})"
    return did_you_mean(name, BROKER_KEYS) or "; see `Configuration` in the documentation for the known ones"


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A hint for an unknown name that is similar to a known one, or that is the topic's name for a broker setting;
    empty if there is none."""
    if len(name) > NAME_MAX:
        return ""
    import difflib  # needed only for an error

    nearest = (
        [OTHERWISE[name]]
        if OTHERWISE.get(name) in known
        else difflib.get_close_matches(name, known, n=1, cutoff=SUGGESTION_CUTOFF)
    )
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    pending = ""
    start = 0
    continued = False
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        line = raw.lstrip(BLANK)
        if not continued:
            if not line or line[0] in "#!":
                continue
            start = number
        backslashes = len(line) - len(line.rstrip("\\"))
        continued = backslashes % 2 == 1
        pending += line[:-1] if continued else line
        if not continued:
            yield start, pending
            pending = ""
    if pending:
        yield start, pending


def _split(line: str) -> tuple[str, str]:
    at = 0
    while at < len(line) and line[at] not in "=:" + BLANK:
        at += 2 if line[at] == "\\" else 1
    name, rest = line[:at], line[at:].lstrip(BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(BLANK)
    return name, rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char != "\\":
            out.append(char)
            at += 1
            continue
        escaped = text[at + 1 : at + 2]
        if escaped == "u":
            digits = text[at + 2 : at + 6]
            if len(digits) != 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise ValueError("\\u is not followed by a character code: write four hexadecimal digits")
            out.append(chr(int(digits, 16)))
            at += 6
        else:
            out.append(ESCAPES.get(escaped, escaped))
            at += 2
    return "".join(out)
