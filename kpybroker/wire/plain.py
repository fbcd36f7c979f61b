"""Converts messages to plain values and back: dicts with the names of the fields, lists, numbers, text and bytes.

A dict has exactly the fields that exist in the version. A uuid is text, as Kafka shows it: 22 characters of base64.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.similar_names import meant
from kpybroker.wire.api import Api
from kpybroker.wire.codec.layout import Array, Blob, Fixed, Piece, Struct, Tagged, layout
from kpybroker.wire.codec.primitives import ZERO_UUID

Plain = dict[str, Any]
UUID = "16s"
ERROR_CODE = "error_code"
"""The end of the name of every field with an error code."""
TOPIC_NAMES = ("name", "topic", "topic_name")
"""The names of the field with the topic's name in an element of a list of topics."""
GROUP_LISTS = ("groups", "group_ids", "groups_names", "coordinator_keys")
"""The names of lists of group ids in requests."""
PARTITION_LISTS = ("partitions", "partition_data", "partition_indexes")
"""The names of the lists of partitions in a topic of a request."""
PARTITION_FIELDS = ("index", "partition_index", "partition")
"""The names of a partition's index in such a list."""
TOPICS_ONCE_PER_SESSION = ("Fetch", "ShareFetch", "ShareAcknowledge")
"""APIs with sessions: a request need not contain all topics that it applies to."""


def as_plain(message: Any, version: int) -> Plain:
    """The fields of a message in this version."""
    plain: Plain = _as_plain(message, _layout(type(message), version))
    return plain


def from_plain(cls: Any, version: int, fields: Mapping[str, Any]) -> Any:
    """The message of this class with these fields; the others have their defaults. Raises ValueError for a field that
    the version lacks, with the most similar one, and for a value of a wrong type."""
    return _from_plain(fields, _layout(cls, version), f"{cls.__module__.rpartition('.')[2]} v{version}")


_layouts: dict[tuple[Any, int], Struct] = {}


def _layout(cls: Any, version: int) -> Struct:
    if (cls, version) not in _layouts:
        _layouts[cls, version] = layout(cls, version)
    return _layouts[cls, version]


def _members(piece: Struct) -> Iterator[tuple[str, Piece]]:
    yield from piece.members
    for tagged in piece.tagged or ():
        yield tagged.name, tagged.piece


def _as_plain(value: Any, piece: Piece) -> Any:
    if value is None:
        return None
    if isinstance(piece, Struct):
        return {name: _as_plain(getattr(value, name), each) for name, each in _members(piece)}
    if isinstance(piece, Array):
        return [_as_plain(each, piece.element) for each in value]
    if isinstance(piece, Fixed) and piece.code == UUID:
        return uuid_text(value)
    if isinstance(piece, Blob):
        return b"".join(value) if isinstance(value, list) else bytes(value)
    return value


def _from_plain(value: Any, piece: Piece | Tagged, path: str) -> Any:
    if value is None:
        return None
    if isinstance(piece, Struct):
        if not isinstance(value, Mapping):
            raise ValueError(f"{path}: {type(value).__name__} instead of a dict of fields")
        members = dict(_members(piece))
        for name in value:
            if name not in members:
                raise ValueError(f"{path} has no field {name!r}{meant(name, members)}")
        made: Any = piece.cls
        return made(**{name: _from_plain(each, members[name], f"{path}.{name}") for name, each in value.items()})
    if isinstance(piece, Array):
        if not isinstance(value, list | tuple):
            raise ValueError(f"{path}: {type(value).__name__} instead of a list")
        return [_from_plain(each, piece.element, f"{path}[{at}]") for at, each in enumerate(value)]
    if isinstance(piece, Fixed) and piece.code == UUID and isinstance(value, str):
        return uuid_of(value)
    return value


def uuid_text(raw: bytes) -> str:
    """A uuid as Kafka shows it."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def uuid_of(text: str) -> bytes:
    """The bytes of a uuid. Raises ValueError."""
    try:
        raw = base64.urlsafe_b64decode(text + "==")
    except ValueError:
        raw = b""
    if len(raw) != len(ZERO_UUID) or uuid_text(raw) != text:
        raise ValueError(f"{text!r} is not a uuid: 22 characters of base64")
    return raw


NO_UUID = uuid_text(ZERO_UUID)


def errors_in(fields: Any) -> list[str]:
    """The names of the error codes in a response, each once, without NONE."""
    found: dict[str, None] = {}
    for name, value in _walk(fields):
        if name.endswith(ERROR_CODE) and isinstance(value, int) and value:
            found[error_name(value)] = None
    return list(found)


def error_name(code: int) -> str:
    """The name of an error code; the number of an unknown one as text."""
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"error {code}"


def topics_in(fields: Any) -> list[tuple[str, bool]]:
    """The topics that a request names, each once. The second value is true for an id, which is given if the request has
    no name."""
    found: dict[tuple[str, bool], None] = {}
    for name, value in _walk(fields):
        if "topic" in name and isinstance(value, list):
            found.update(dict.fromkeys(filter(None, map(_topic_of, value))))
    return list(found)


def _topic_of(row: Any) -> tuple[str, bool] | None:
    """The topic that an element of a list of topics names."""
    if isinstance(row, str):
        return row, False
    if not isinstance(row, dict):
        return None
    for name in TOPIC_NAMES:
        if isinstance(row.get(name), str) and row[name]:
            return row[name], False
    topic_id = row.get("topic_id", NO_UUID)
    return None if topic_id == NO_UUID else (topic_id, True)


def partitions_in(fields: Any) -> Iterator[tuple[tuple[str, bool] | None, set[int]]]:
    """The partitions of each topic that a request names; the topic as in `topics_in`, None if it is not named."""
    for name, value in _walk(fields):
        if "topic" in name and isinstance(value, list):
            for row in value:
                yield _topic_of(row), _indexes_of(row) if isinstance(row, dict) else set()


def _indexes_of(row: Plain) -> set[int]:
    entries: list[Any] = next((row[name] for name in PARTITION_LISTS if isinstance(row.get(name), list)), [])
    return {each if isinstance(each, int) else _index_of(each) for each in entries}


def _index_of(entry: Plain) -> int:
    return next(int(entry[name]) for name in PARTITION_FIELDS if name in entry)


def groups_in(fields: Plain) -> list[str]:
    """The groups that a request names, each once."""
    if fields.get("key_type"):  # FindCoordinator of a transactional id or a share partition
        return []
    found: dict[str, None] = {}
    if "key_type" in fields and fields.get("key"):
        found[fields["key"]] = None
    for name, value in _walk(fields):
        if name == "group_id" and isinstance(value, str):
            found[value] = None
        elif name in GROUP_LISTS and isinstance(value, list):
            found.update(dict.fromkeys(each for each in value if isinstance(each, str)))
    return list(found)


def _walk(fields: Any) -> Iterator[tuple[str, Any]]:
    """Every field at any depth."""
    if isinstance(fields, dict):
        for name, value in fields.items():
            yield name, value
            if isinstance(value, dict | list):
                yield from _walk(value)
    elif isinstance(fields, list):
        for each in fields:
            yield from _walk(each)


@cache
def names_topics(api: Api) -> bool:
    """Whether requests of this API can name topics."""
    return any("topic" in name and isinstance(piece, Array) for name, piece in _all_members(api))


@cache
def names_partitions(api: Api) -> bool:
    """Whether requests of this API can name partitions of topics."""
    return names_topics(api) and any(
        name in PARTITION_LISTS and isinstance(piece, Array) for name, piece in _all_members(api)
    )


@cache
def names_groups(api: Api) -> bool:
    """Whether requests of this API can name groups."""
    return any(name == "group_id" or name in GROUP_LISTS for name, _ in _all_members(api))


def _all_members(api: Api) -> list[tuple[str, Piece]]:
    found: list[tuple[str, Piece]] = []
    waiting: list[Piece] = [_layout(api.request, version) for version in range(api.min, api.max + 1)]
    while waiting:
        piece = waiting.pop()
        if isinstance(piece, Array):
            waiting.append(piece.element)
        elif isinstance(piece, Struct):
            members = list(_members(piece))
            found += members
            waiting += [each for _, each in members]
    return found
