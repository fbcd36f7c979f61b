"""Builds request frames in which one array has very many elements, and the arrays that contain it have one element."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack
from typing import Any

from kpybroker.wire.api import Api
from kpybroker.wire.codec.layout import Array, Blob, Fixed, Piece, Struct, Text, layout
from kpybroker.wire.codec.primitives import write_uvarint

NAME, NUMBER = b"n0000000", b"zqzq"
"""Placeholders for the names and numbers that differ in each element."""
NUMBERED = ("partition", "index", "partition_index", "partition_id", "topic_id")
Path = tuple[str, ...]


def arrays_of(piece: Piece, path: Path = ()) -> Iterator[Path]:
    """The paths of the arrays in a request."""
    if isinstance(piece, Struct):
        for name, member in piece.members:
            yield from arrays_of(member, (*path, name))
    elif isinstance(piece, Array):
        yield path
        yield from arrays_of(piece.element, path)


def request_with_many(api: Api, target: Path, elements: int) -> bytes:
    """A request in the highest version with this many elements in the array at `target`."""
    return _Filler(target, elements).piece(layout(api.request, api.max), api.request(), ())


class _Filler:
    def __init__(self, target: Path, elements: int) -> None:
        self.target = target
        self.elements = elements

    def piece(self, piece: Piece, value: Any, path: Path) -> bytes:
        if isinstance(piece, Fixed):
            return self.fixed(piece.code, value, path)
        if isinstance(piece, Text | Blob):
            if value is None and piece.nullable:
                return _length(piece, None)
            data = (value or NAME.decode()).encode() if isinstance(piece, Text) else bytes(value or b"")
            return _length(piece, len(data)) + data
        if isinstance(piece, Array):
            return self.array(piece, value, path)
        if piece.nullable and value is None:
            if self.target[: len(path)] != path:
                return b"\xff"
            value = piece.cls()
        members = (self.piece(member, getattr(value, name), (*path, name)) for name, member in piece.members)
        return b"\1" * piece.nullable + b"".join(members) + b"\0" * (piece.tagged is not None)

    def fixed(self, code: str, value: Any, path: Path) -> bytes:
        name = path[-1]
        if path[:-1] == self.target and name in NUMBERED and code in ("i", "16s"):
            return NUMBER.ljust(len(pack(">" + code, value)), b"\0")
        given = {"timeout_ms": 5000, "timeout_m_s": 5000, "acks": 1, "session_epoch": 0 if code == "i" else value}
        return pack(">" + code, given.get(name, value))

    def array(self, piece: Array, value: Any, path: Path) -> bytes:
        count = self.elements if path == self.target else int(self.target[: len(path)] == path)
        if not count:
            return _length(piece, None if value is None and piece.nullable else 0)
        head = _length(piece, count)
        if isinstance(piece.element, Fixed):
            code = piece.element.code
            return head + b"".join(
                pack(
                    ">16s" if code == "16s" else f">{code}",
                    i.to_bytes(16) if code == "16s" else i % (100 if code == "b" else 100_000),
                )
                for i in range(count)
            )
        made = piece.element.cls() if isinstance(piece.element, Struct) else NAME.decode()
        one = self.piece(piece.element, made, path)
        each = (one.replace(NAME, b"n%07d" % i).replace(NUMBER, pack(">i", i)) for i in range(count))
        return head + b"".join(each)


def _length(piece: Text | Blob | Array, length: int | None) -> bytes:
    if piece.compact:
        return write_uvarint(0 if length is None else length + 1)
    return pack(">h" if isinstance(piece, Text) else ">i", -1 if length is None else length)
