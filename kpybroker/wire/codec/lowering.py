"""Generates a parse function and a build function for each message and version, as Python code, on first use.

The code is fast for these reasons:

- Neighbouring fixed-width fields, the length after them and the tag count are read or written by one struct call.
- Compact lengths of one byte are handled without a function call.
- Objects are created without their constructor.
- Strings are sliced from a bytes copy of the frame. Only records are views of the frame itself.

Every malformed frame raises MalformedFrame, and the memory that is allocated is limited by the size of the frame:

- An index or a struct call past the end of the frame raises an exception.
- A slice past the end leaves the position beyond the end, where the next read or the final check refuses it.
- Counts are compared with the remaining bytes before a list is created.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kpybroker.wire.codec.layout import Array, Blob, Fixed, Piece, Struct, Text


class Emitter:
    """Collects the lines of a generated function, and the objects that they refer to."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.lines: list[str] = []
        self.depth = 1
        self._temporaries = 0

    def line(self, text: str) -> None:
        self.lines.append(" " * self.depth + text)

    def indent(self) -> None:
        """Indent the next lines by one more level."""
        self.depth += 1

    def dedent(self, levels: int = 1) -> None:
        """Indent the next lines by one less level."""
        self.depth -= levels

    def temporary(self, prefix: str) -> str:
        self._temporaries += 1
        return f"{prefix}{self._temporaries}"

    def struct(self, codes: str, method: str) -> str:
        """A name for the method of the struct with these codes."""
        name = f"{method}_{codes.replace('?', 't')}"
        self.namespace.setdefault(name, getattr(struct.Struct(">" + codes), method))
        return name

    def name(self, value: Any, name: str) -> str:
        """A name for a value in the function's globals."""
        while self.namespace.setdefault(name, value) is not value:
            name += "_"
        return name


def min_bytes(piece: Piece) -> int:
    """The smallest encoded size of a value, in bytes."""
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
    """Whether this layout contains records."""
    if isinstance(piece, Struct):
        pieces = [each for _, each in piece.members] + [each.piece for each in piece.tagged or ()]
        return any(map(has_view, pieces))
    return has_view(piece.element) if isinstance(piece, Array) else isinstance(piece, Blob) and piece.view


def finish(emitter: Emitter, head: str, title: str) -> Callable[..., Any]:
    """Compile the emitted lines. `title` is the file name in tracebacks."""
    source = "\n".join([head, *(emitter.lines or [" pass"])])
    exec(compile(source, f"<{title}>", "exec"), emitter.namespace)
    made: Callable[..., Any] = emitter.namespace["lowered"]
    return made
