"""Turns a layout into straight-line Python: one parse and one build function per (message, version), on first use.

What makes it fast: neighbouring fixed-width fields, the length that follows them and the tag count become one struct
call; compact lengths of one byte are handled inline; objects are made without their constructor; strings are cut from
a bytes copy of the frame (only records are views of the frame itself).

What keeps it safe: an index or a struct call past the end raises; a slice past the end leaves the position after the
end, where the next read or the final check refuses it; counts are compared with the remaining bytes before a list is
created. So every malformed frame ends in MalformedFrame, and nothing is allocated that the frame does not contain.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kpybroker.wire.codec.layout import Array, Blob, Fixed, Piece, Struct, Text


class Emitter:
    """Collects the lines of a function, and the names that they use."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.lines: list[str] = []
        self.depth = 1
        self._temporaries = 0

    def line(self, text: str) -> None:
        self.lines.append(" " * self.depth + text)

    def indent(self) -> None:
        """Indent the next lines by one level more."""
        self.depth += 1

    def dedent(self, levels: int = 1) -> None:
        """Indent the next lines by one level less."""
        self.depth -= levels

    def temporary(self, prefix: str) -> str:
        self._temporaries += 1
        return f"{prefix}{self._temporaries}"

    def struct(self, codes: str, method: str) -> str:
        """The name of a method of the struct with these codes."""
        name = f"{method}_{codes.replace('?', 't')}"
        self.namespace.setdefault(name, getattr(struct.Struct(">" + codes), method))
        return name

    def name(self, value: Any, name: str) -> str:
        """A name for a value in the function's globals."""
        while self.namespace.setdefault(name, value) is not value:
            name += "_"
        return name


def min_bytes(piece: Piece) -> int:
    """The fewest bytes of a value."""
    if isinstance(piece, Fixed):
        return struct.calcsize(">" + piece.code)
    if isinstance(piece, Text):
        return 1 if piece.compact else 2
    if isinstance(piece, Blob | Array):
        return 1 if piece.compact else 4
    if piece.nullable:
        return 1
    return sum(min_bytes(each) for _, each in piece.members) + (piece.tagged is not None)


def has_view(piece: Piece) -> bool:
    """Whether there are records anywhere in this layout."""
    if isinstance(piece, Struct):
        pieces = [each for _, each in piece.members] + [each.piece for each in piece.tagged or ()]
        return any(map(has_view, pieces))
    return has_view(piece.element) if isinstance(piece, Array) else isinstance(piece, Blob) and piece.view


def finish(emitter: Emitter, head: str, title: str) -> Callable[..., Any]:
    """Compile the emitted lines; title is the file name in tracebacks."""
    source = "\n".join([head, *(emitter.lines or [" pass"])])
    exec(compile(source, f"<{title}>", "exec"), emitter.namespace)
    made: Callable[..., Any] = emitter.namespace["lowered"]
    return made
