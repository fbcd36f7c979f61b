"""Recorded requests of clients: what a request contains, filters, a table, and the files that keep recordings.

A file has one JSON object per line. The first is the header, `{"kpybroker_recording": 1, "topics": {ID: NAME, ...}}`;
each of the others is a request with the fields of `RecordedRequest`. Frames are base64 and have no size before them.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from kpybroker.errors import ErrorCode, MalformedFrame
from kpybroker.similar_names import meant
from kpybroker.wire import plain
from kpybroker.wire.api import API, Api, by_key, by_name
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.frame import RequestHeader, parse_request_header, parse_response_header, response_version

FORMAT = "kpybroker_recording"
FORMAT_VERSION = 1
REQUESTS_MAX = 1_000_000
LINE_BYTES_MAX = 400 * 1024 * 1024
"""The longest line of a file: the largest request and the largest response, in base64."""
ABOUT_MAX = 60
"""The most characters of a column of a table."""
NO_RESPONSE = "no response"


@dataclass(frozen=True)
class RecordedRequest:
    """A request of a client and its response, as one broker saw them."""

    node: int
    """The id of the broker."""
    number: int
    """The order in which the broker received its requests."""
    connection: int
    """A number that is unique among the connections of the broker's process."""
    address: str
    """The client's `host:port`."""
    principal: str
    """The user, such as `User:ANONYMOUS`."""
    at_us: int
    """When the request came: microseconds since the epoch."""
    duration_us: int | None
    """Microseconds until the response was encoded; None if there is none."""
    request: bytes = field(repr=False)
    """The frame. Records of a large Produce request may be missing, if `is_whole` is false."""
    request_bytes: int
    response: bytes | None = field(repr=False)
    """The frame of the response; None if there is none, or if it was too large to be kept."""
    response_bytes: int
    end: str | None = None
    """How the request ended, if it got no response."""
    topic_names: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The names of topics by their ids."""

    @cached_property
    def _header(self) -> tuple[RequestHeader, int]:
        try:
            return parse_request_header(self.request)
        except MalformedFrame:
            return RequestHeader(-1, -1, -1), 0

    @property
    def _row(self) -> Api | None:
        row = by_key.get(self._header[0].api_key)
        return row if row is not None and row.min <= self.version <= row.max else None

    @property
    def api(self) -> str:
        """The name of the request, such as "Produce"."""
        key = self._header[0].api_key
        return by_key[key].name if key in by_key else f"api key {key}"

    @property
    def version(self) -> int:
        """The version of the request."""
        return self._header[0].api_version

    @property
    def correlation_id(self) -> int:
        """The client's number for this request."""
        return self._header[0].correlation_id

    @property
    def client_id(self) -> str | None:
        """The client's client.id."""
        return self._header[0].client_id

    @property
    def at(self) -> datetime:
        """When the request came, in local time."""
        return datetime.fromtimestamp(self.at_us / 1_000_000).astimezone()

    @property
    def duration_s(self) -> float | None:
        """Seconds until the response was encoded, with all waits; None if there is none."""
        return None if self.duration_us is None else self.duration_us / 1_000_000

    @property
    def is_whole(self) -> bool:
        """Whether all of the request was kept."""
        return len(self.request) == self.request_bytes

    @cached_property
    def message(self) -> Any:
        """The parsed request; None if it cannot be parsed."""
        row = self._row
        try:
            return None if row is None else parse(row.request, self.version, self.request, self._header[1])
        except MalformedFrame:
            return None

    @cached_property
    def response_message(self) -> Any:
        """The parsed response; None if there is none, or if it was not kept or cannot be parsed."""
        row = by_key.get(self._header[0].api_key)
        if row is None or self.response is None:
            return None
        version = self.response_version
        try:
            _, at = parse_response_header(self.response, row, version)
            return parse(row.response, version, self.response, at) if row.min <= version <= row.max else None
        except MalformedFrame:
            return None

    @property
    def response_version(self) -> int:
        """The version of the response: that of the request, or 0 for the refusal of an ApiVersions request."""
        row = by_key.get(self._header[0].api_key)
        return response_version(self.response or b"", row, self.version) if row is not None else self.version

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The fields of the request; {} if it cannot be parsed."""
        return {} if self.message is None else plain.as_plain(self.message, self.version)

    @cached_property
    def response_fields(self) -> dict[str, Any] | None:
        """The fields of the response; None as for `response_message`."""
        return None if self.response_message is None else plain.as_plain(self.response_message, self.response_version)

    @cached_property
    def errors(self) -> list[str]:
        """The names of all error codes in the response, each once."""
        return plain.errors_in(self.response_fields)

    @property
    def error(self) -> str | None:
        """The name of the first error code in the response; None if there is none."""
        return self.errors[0] if self.errors else None

    @cached_property
    def topics(self) -> list[str]:
        """The topics that the request names. A topic whose name is unknown is shown with its id."""
        return [self.topic_names.get(each, each) if is_id else each for each, is_id in plain.topics_in(self.fields)]

    @property
    def topic_ids(self) -> list[str]:
        """The ids of the topics that the request does not name otherwise."""
        return [each for each, is_id in plain.topics_in(self.fields) if is_id]

    @cached_property
    def groups(self) -> list[str]:
        """The groups that the request names."""
        return plain.groups_in(self.fields)

    @property
    def outcome(self) -> str:
        """`ok`, the errors in the response, or why there is no response."""
        if self.end is not None:
            return self.end
        if self.duration_us is None:
            return NO_RESPONSE
        if self.response is None:
            return f"{self.response_bytes} bytes, not kept"
        if self.response_fields is None:
            return "a response that cannot be parsed"
        return ", ".join(self.errors) or "ok"

    def as_line(self) -> dict[str, Any]:
        """The fields as a file has them."""
        line = {name: getattr(self, name) for name in _KEPT}
        for name in ("request", "response"):
            raw = line[name]
            line[name] = None if raw is None else base64.b64encode(raw).decode()
        return line

    @classmethod
    def of_line(cls, line: Mapping[str, Any], topic_names: Mapping[str, str]) -> RecordedRequest:
        """The request in a line. Raises ValueError with the reason if it is damaged."""
        values = {name: line.get(name) for name in _KEPT}
        for name, value in values.items():
            kind = _TYPES[name]
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(f"{name} is {_shown(value)}, not of type {kind.__name__}")
        for name in ("request", "response"):
            raw = values[name]
            try:
                values[name] = None if raw is None else base64.b64decode(raw, validate=True)
            except binascii.Error as error:
                raise ValueError(f"{name} is not base64: {error}") from None
        return cls(**values, topic_names=topic_names)  # type: ignore[arg-type]


_KEPT = [each.name for each in fields(RecordedRequest) if each.name != "topic_names"]
_OPTIONAL = ("duration_us", "response", "end")
_TYPES: Mapping[str, type] = {
    name: str if name in ("address", "principal", "request", "response", "end") else int for name in _KEPT
}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= ABOUT_MAX else f"{text[:ABOUT_MAX]}..."


class Filters(TypedDict, total=False):
    """The arguments of `Recording.requests` and others that choose requests."""

    topic: str | None
    group: str | None
    client_id: str | None
    node: int | None
    error: str | None
    where: Callable[[RecordedRequest], object] | None


class Filter(NamedTuple):
    """Which requests are wanted; a field that is None admits all."""

    api: str | None = None
    topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    node: int | None = None
    error: str | None = None
    where: Callable[[RecordedRequest], object] | None = None

    def check(self) -> Filter:
        """Return the filter. Raises ValueError if it can never match, with the most similar valid name; TypeError."""
        for name in ("topic", "group", "client_id", "error"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{name}={value!r}: give text, not {type(value).__name__}")
        if self.where is not None and not callable(self.where):
            raise TypeError(f"where={self.where!r}: give a function of a request")
        row = None
        if self.api is not None:
            known = [api.name for api in API]
            if self.api not in known:
                raise ValueError(f"Kafka has no {self.api!r} requests{meant(self.api, known)}")
            row = by_name[self.api]
        if self.error is not None:
            codes = [code.name for code in ErrorCode if code is not ErrorCode.NONE]
            if self.error not in codes:
                raise ValueError(f"Kafka has no error {self.error!r}{meant(self.error, codes)}")
        if row is not None and self.topic is not None:
            if row.name in plain.TOPICS_ONCE_PER_SESSION:
                raise ValueError(
                    f"{row.name} requests name their topics only once per session; use client_id instead of topic"
                )
            if not plain.names_topics(row):
                raise ValueError(f"{row.name} requests name no topic, so topic={self.topic!r} can never match")
        if row is not None and self.group is not None and not plain.names_groups(row):
            raise ValueError(f"{row.name} requests name no group, so group={self.group!r} can never match")
        return self

    def matches(self, request: RecordedRequest) -> bool:
        """Whether the request is wanted."""
        return (
            (self.api is None or self.api == request.api)
            and (self.client_id is None or self.client_id == request.client_id)
            and (self.node is None or self.node == request.node)
            and (self.topic is None or self.topic in request.topics)
            and (self.group is None or self.group in request.groups)
            and (self.error is None or self.error in request.errors)
            and (self.where is None or bool(self.where(request)))
        )

    def __str__(self) -> str:
        limits = [f"{name}={value!r}" for name, value in self._asdict().items() if value is not None and name != "api"]
        return f"{self.api or 'requests'}{' with ' + ', '.join(limits) if limits else ''}"


COLUMNS = ("TIME", "NODE", "CLIENT", "REQUEST", "ABOUT", "MS", "RESULT")


def rows_of(requests: Iterable[RecordedRequest]) -> Iterator[tuple[str, ...]]:
    """The cells of a table, by COLUMNS."""
    for each in requests:
        about = ", ".join([*each.topics, *each.groups])
        took = "-" if each.duration_us is None else f"{each.duration_us / 1000:.1f}"
        name = f"{each.api} v{each.version}"
        time = each.at.strftime("%H:%M:%S.%f")[:-3]
        yield time, str(each.node), each.client_id or "-", name, _cut(about) or "-", took, _cut(each.outcome)


def table_of(requests: Sequence[RecordedRequest]) -> str:
    """A table of plain text with a line for each request."""
    return aligned([COLUMNS, *rows_of(requests)], rights=[COLUMNS.index("MS")])


def aligned(rows: Sequence[Sequence[object]], rights: Sequence[int]) -> str:
    """Lines with aligned columns; those with the numbers `rights` are right-aligned."""
    widths = [max(len(str(row[at])) for row in rows) for at in range(len(rows[0]))]
    lines = [
        [str(cell).rjust(width) if at in rights else str(cell).ljust(width) for at, (cell, width) in enumerate(cells)]
        for cells in (zip(row, widths, strict=True) for row in rows)
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _cut(text: str) -> str:
    return text if len(text) <= ABOUT_MAX else f"{text[: ABOUT_MAX - 3]}..."


def save(path: Path, requests: Sequence[RecordedRequest], topic_names: Mapping[str, str]) -> None:
    """Write a file. Raises OSError, ValueError for too many requests."""
    if len(requests) > REQUESTS_MAX:
        raise ValueError(f"{len(requests)} requests; a file has at most {REQUESTS_MAX}")
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({FORMAT: FORMAT_VERSION, "topics": dict(topic_names)}) + "\n")
        for request in requests:
            file.write(json.dumps(request.as_line()) + "\n")


def load(path: Path) -> list[RecordedRequest]:
    """Read a file. Raises OSError; ValueError with the line and the reason if it is damaged."""
    requests: list[RecordedRequest] = []
    topic_names: dict[str, str] = {}
    with path.open("rb") as file:
        number = 0
        while line := file.readline(LINE_BYTES_MAX):
            number += 1
            try:
                if number == 1:
                    topic_names = _topic_names(_object(line))
                elif len(requests) >= REQUESTS_MAX:
                    raise ValueError(f"more than {REQUESTS_MAX} requests")
                else:
                    requests.append(RecordedRequest.of_line(_object(line), topic_names))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not number:
        raise ValueError(f"{path} is empty; a recording begins with a header")
    return requests


def _object(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise ValueError("it is cut off, or too long")
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _topic_names(header: Mapping[str, Any]) -> dict[str, str]:
    version = header.get(FORMAT)
    if version is None:
        raise ValueError("it is not the header of a recording; write one with Recording.save")
    if version != FORMAT_VERSION:
        raise ValueError(f"its format is {_shown(version)}; this kpybroker reads {FORMAT_VERSION}")
    names = header.get("topics")
    if not isinstance(names, dict) or not all(isinstance(each, str) for each in names.values()):
        raise ValueError("topics is not an object with the names of topics")
    return names
