"""Converts records to and from JSON, one object per line: `consume --json` writes them, `produce --json-lines` reads
them."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kpybroker.client.client import CommandFailed
from kpybroker.wire.records.batch import Headers, Record

FIELDS = frozenset(
    ("topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers")
)
HEADER_FIELDS = frozenset(("key", "value", "value_base64"))
TIMESTAMP_MAX = 2**63 - 1
NO_TIMESTAMP = -1
PARTITION_MAX = 2**31 - 1
HEADERS_MAX = 1000


class Outgoing(NamedTuple):
    """A record to send. `partition` and `timestamp` (ms) are None if the input has none."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None


def json_line(topic: str, partition: int, record: Record) -> str:
    """One record as a line of JSON; bytes that are not UTF-8 are in fields named `..._base64`."""
    return json.dumps({"topic": topic, "partition": partition, **json_fields(record)}, ensure_ascii=False)


def json_fields(record: Record) -> dict[str, Any]:
    """The fields of one record; bytes that are not UTF-8 are in fields named `..._base64`."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_text("key", record.key),
        **_text("value", record.value),
        "headers": [{"key": name, **_text("value", content)} for name, content in record.headers],
    }


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data or b"").decode("ascii")}


def parse_json_line(line: bytes, number: int) -> Outgoing:
    """Parse a line as `json_line` writes it. Ignores `topic` and `offset`, as the command names the topic.

    Raises CommandFailed with the number of the line.
    """
    try:
        found = _parsed(line)
        if not isinstance(found, dict):
            raise ValueError("not a JSON object")
        return _outgoing(found)
    except (ValueError, RecursionError) as error:
        raise CommandFailed(
            f"line {number} cannot be sent: {error}; write lines as `kpybroker consume --json` does. The lines before "
            "it were sent"
        ) from None


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error})") from None


def _outgoing(found: Mapping[str, Any]) -> Outgoing:
    unknown = sorted(set(found) - FIELDS)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}")
    headers = found.get("headers")
    return Outgoing(
        _bytes(found, "key"),
        _bytes(found, "value"),
        tuple(_headers([] if headers is None else headers)),
        _number(found, "partition", 0, PARTITION_MAX),
        _number(found, "timestamp", NO_TIMESTAMP, TIMESTAMP_MAX),
    )


def _bytes(found: Mapping[str, Any], name: str) -> bytes | None:
    """The bytes of a field: text for a string, None for null, and JSON text for any other value."""
    encoded = found.get(f"{name}_base64")
    if encoded is not None:
        if name in found:
            raise ValueError(f"{name} and {name}_base64 cannot be used together")
        try:
            return base64.b64decode(encoded, validate=True)
        except (TypeError, binascii.Error):
            raise ValueError(f"{name}_base64 is not Base64") from None
    value = found.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} has half a surrogate pair") from None


def _headers(found: Any) -> Iterator[tuple[str, bytes | None]]:
    """Headers from a list as `consume --json` writes it, or from an object of names and values."""
    if isinstance(found, dict):
        found = [{"key": name, "value": value} for name, value in found.items()]
    if not isinstance(found, list):
        raise ValueError("headers is neither a list nor an object")
    if len(found) > HEADERS_MAX:
        raise ValueError(f"{len(found)} headers; at most {HEADERS_MAX}")
    for header in found:
        if not isinstance(header, dict) or not isinstance(header.get("key"), str) or set(header) - HEADER_FIELDS:
            raise ValueError('a header is not of the form {"key": "name", "value": "..."}')
        yield header["key"], _bytes(header, "value")


def _number(found: Mapping[str, Any], name: str, smallest: int, largest: int) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise ValueError(f"{name} is not a number from {smallest} to {largest}")
    return value
