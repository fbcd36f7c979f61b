"""Executes commands of tests about recorded requests (`test kit`, see `server/requests/recorder.py`).

`{"do": "record"}` begins a recording and returns its number as `tape`; with `"with_last": true`, it begins with the
last requests. `{"do": "take", "tape": 1, "after": N}` returns `requests` with higher numbers than N, `more` (whether
there are others) and `lost` (how many did not fit); complete requests of a recording are returned only once. Tape 0 has
the last requests. `{"do": "end", "tape": 1}` ends a recording. `{"do": "topics", "ids": [...]}` returns the names of
topics by id.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from kpybroker.server.requests.recorder import Entry, Recorder
from kpybroker.server.server import Server
from kpybroker.wire.plain import uuid_of
from kpybroker.wire.recording import CLOSED

TAKEN_BYTES = 262_144
"""A response with this many bytes of frames is complete; the rest is in further responses."""
IDS_MAX = 1000


def record(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    """Begin a recording."""
    return {"tape": server.recorder.begin(with_last=command.get("with_last") is True)}


def end(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    """End a recording."""
    number = _tape_of(server.recorder, command)
    if number:
        server.recorder.end(number)
    return {}


def take(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded requests."""
    recorder = server.recorder
    recorder.settle()
    tape, after = recorder.tape(_tape_of(recorder, command)), command.get("after")
    if not isinstance(after, int):
        raise TypeError(f"after={after!r}: must be the number of a request, or 0")
    found: list[Entry] = []
    size_bytes, has_more = 0, False
    for entry in tape:
        if entry.number > after:
            if size_bytes >= TAKEN_BYTES:
                has_more = True
                break
            found.append(entry)
            size_bytes += entry.size_bytes
    lines = [_line(recorder, entry) for entry in found]
    if not tape.keeps_last:
        tape.remove([entry for entry in found if entry.ended is not None])
    return {"requests": lines, "more": has_more, "lost": tape.lost}


def topics(server: Server, command: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names of topics; deleted ones have none."""
    ids = command.get("ids")
    if not isinstance(ids, list) or len(ids) > IDS_MAX:
        raise ValueError(f"ids must be a list of at most {IDS_MAX} topic ids")
    names = server.broker.metadata.image.names
    return {"topics": {each: names[raw] for each in ids if (raw := uuid_of(str(each))) in names}}


COMMANDS: Mapping[str, Callable[[Server, Mapping[str, Any]], dict[str, Any]]] = {
    "record": record,
    "take": take,
    "end": end,
    "topics": topics,
}


def _tape_of(recorder: Recorder, command: Mapping[str, Any]) -> int:
    number = command.get("tape")
    try:
        recorder.tape(number)  # type: ignore[arg-type]
    except (KeyError, TypeError):
        raise ValueError(f"there is no recording {number!r}") from None
    assert isinstance(number, int)
    return number


def _line(recorder: Recorder, entry: Entry) -> dict[str, Any]:
    """A request with the fields of `RecordedRequest`, without those of the node."""
    ended = entry.ended
    return {
        "number": entry.number,
        "connection": entry.connection,
        "address": entry.address,
        "principal": str(entry.principal),
        "at_us": recorder.at_us(entry.began),
        "duration_us": None if ended is None or entry.how == CLOSED else int((ended - entry.began) * 1_000_000),
        "request": base64.b64encode(entry.request).decode(),
        "request_bytes": entry.request_bytes,
        "response": None if entry.response is None else base64.b64encode(entry.response).decode(),
        "response_bytes": entry.response_bytes,
        "end": entry.how,
    }
