"""Formats records for output: as stored, as JSON, or by a template."""

from __future__ import annotations

import re
import string
from collections.abc import Callable

from kpybroker.cli.json_lines import json_line
from kpybroker.cli.times import when
from kpybroker.errors import ConfigError
from kpybroker.wire.records.batch import Record

Show = Callable[[int, Record], str | bytes]
FIELDS: dict[str, Callable[[str, int, Record], bytes]] = {
    "topic": lambda topic, _, __: topic.encode(),
    "partition": lambda _, partition, __: b"%d" % partition,
    "offset": lambda _, __, record: b"%d" % record.offset,
    "timestamp": lambda _, __, record: b"%d" % record.timestamp,
    "time": lambda _, __, record: when(record.timestamp).encode(),
    "key": lambda _, __, record: b"null" if record.key is None else record.key,
    "value": lambda _, __, record: b"null" if record.value is None else record.value,
    "headers": lambda _, __, record: b",".join(
        name.encode() + b"=" + (b"null" if content is None else content) for name, content in record.headers
    ),
}
ESCAPES = {r"\n": "\n", r"\t": "\t", r"\0": "\0", r"\\": "\\"}


def json_of(topic: str) -> Show:
    """One JSON object per record; bytes that are not UTF-8 are in fields named `..._base64`."""
    return lambda partition, record: json_line(topic, partition, record)


def plain(separator: bytes) -> Show:
    """Key, separator and value, or only the value of a record without a key. Bytes unchanged; `null` for a null
    value."""

    def show(_: int, record: Record) -> bytes:
        value = b"null" if record.value is None else record.value
        return value if record.key is None else record.key + separator + value

    return show


def template(topic: str, text: str) -> Show:
    r"""A template with FIELDS in braces, such as `{offset} {key}={value}`; `\n`, `\t`, and `{{` for a brace.

    Raises ConfigError.
    """
    parts: list[bytes | Callable[[str, int, Record], bytes]] = []
    try:
        for literal, name, spec, conversion in string.Formatter().parse(text):
            parts.append(re.sub(r"\\[nt0\\]", lambda found: ESCAPES[found[0]], literal).encode())
            if name is None:
                continue
            if name not in FIELDS or spec or conversion:
                raise ConfigError(f"--format has no field {{{name}}}; the fields are {', '.join(FIELDS)}")
            parts.append(FIELDS[name])
    except ValueError as error:
        raise ConfigError(f"cannot read --format {text!r}: {error}") from None

    if not any(callable(part) for part in parts):
        raise ConfigError(f"--format {text!r} has no field in braces; write, for example, '{{offset}} {{value}}'")

    def show(partition: int, record: Record) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(topic, partition, record) for part in parts)

    return show
