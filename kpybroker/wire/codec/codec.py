"""Converts messages to bytes and back, with the functions that `parsing` and `building` generate on first use."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any

from kpybroker.wire.codec.building import lower_builder
from kpybroker.wire.codec.layout import complaint
from kpybroker.wire.codec.message import Buffer, T
from kpybroker.wire.codec.parsing import Reading, lower_parser, lower_parser_in_turns


def parser(cls: type[T], version: int) -> Callable[[Buffer, int], T]:
    """The function that `parse` uses, for callers that parse the same message class many times."""
    declared: Any = cls  # a class that `message` has created
    found: Callable[[Buffer, int], T] | None = declared.lowered_parsers.get(version)
    if found is None:
        found = declared.lowered_parsers[version] = lower_parser(cls, version)
    return found


def parser_at_once(cls: type[T], version: int) -> Callable[[Buffer, int], T]:
    """Like `parser`, for requests of at most `parsing.ELEMENTS_AT_ONCE` elements. Raises ManyElements for longer
    requests."""
    found: Callable[[Buffer, int], T] = _lowered(
        cls, version, "at once", lambda: lower_parser(cls, version, reading=Reading.AT_ONCE)
    )
    return found


def parse_in_turns(
    cls: type[T], version: int, frame: bytes | memoryview, pos: int, most: int
) -> Generator[None, None, T]:
    """Parse a request of many elements. Yields between turns, and returns the request. Its records are views of the
    frame.

    Raises MalformedFrame, also for more than `most` elements.
    """
    read = _lowered(cls, version, "parse in turns", lambda: lower_parser_in_turns(cls, version))
    found: Generator[None, None, T] = read(frame, pos, most)
    return found


def build_in_turns(message: Any, version: int) -> Generator[None, None, bytes]:
    """Like `build`, but yields between turns. The message must not change in the meantime."""
    return b"".join((yield from build_chunks_in_turns(message, version)))


def build_chunks_in_turns(message: Any, version: int) -> Generator[None, None, list[bytes | memoryview]]:
    """Like `build_chunks`, but yields between turns.

    The pieces built in one turn become one chunk: there may be millions of pieces, and joining them all at the end
    would delay other work for too long.
    """
    builder = _lowered(type(message), version, "build in turns", lambda: lower_builder(type(message), version, True))
    chunks: list[bytes | memoryview] = []
    pieces: list[Any] = []
    large: list[int] = []
    try:
        for _ in builder(message, pieces, large):
            chunks += merge(pieces, large)
            pieces.clear()
            large.clear()
            yield
    except (struct.error, AttributeError, TypeError, ValueError) as error:
        raise ValueError(complaint(message, version) or str(error)) from error
    return chunks + merge(pieces, large)


def _lowered(cls: Any, version: int, kind: str, lower: Callable[[], Any]) -> Any:
    found = cls.lowered_others.get((kind, version))
    if found is None:
        found = cls.lowered_others[kind, version] = lower()
    return found


def parse(cls: type[T], version: int, view: Buffer, pos: int = 0) -> T:
    """Parse the message that fills `view` from `pos` to its end. Its records are views of `view`. Raises
    MalformedFrame.

    Bytes after a request are ignored, as in Kafka; after any other message they are refused.
    """
    return parser(cls, version)(view, pos)


def parse_prefix(cls: type[T], version: int, view: Buffer, pos: int = 0) -> tuple[T, int]:
    """Parse the message that starts at `pos`. Returns it and the position after it. Raises MalformedFrame."""
    declared: Any = cls
    lowered = declared.lowered_parsers.get(~version)  # `version` is the key of the parser for whole frames
    if lowered is None:
        lowered = declared.lowered_parsers[~version] = lower_parser(cls, version, prefix=True)
    found: tuple[T, int] = lowered(view, pos)
    return found


def pieces_of(message: Any, version: int) -> tuple[list[Any], list[int]]:
    """The message's buffers in order, and the indices of large records. Raises ValueError if it cannot be encoded."""
    builder = message.lowered_builders.get(version)
    if builder is None:
        builder = message.lowered_builders[version] = lower_builder(type(message), version)
    pieces: list[Any] = []
    large: list[int] = []
    try:
        builder(message, pieces, large)
    except (struct.error, AttributeError, TypeError, ValueError) as error:
        raise ValueError(complaint(message, version) or str(error)) from error
    return pieces, large


def build(message: Any, version: int) -> bytes:
    """The message's bytes in this version. Raises ValueError, which names the field that cannot be encoded."""
    return b"".join(pieces_of(message, version)[0])


def build_chunks(message: Any, version: int) -> list[bytes | memoryview]:
    """Like `build`, but records of `LARGE_BYTES` or more stay separate buffers and are not copied."""
    return merge(*pieces_of(message, version))


def merge(pieces: list[Any], large: list[int]) -> list[bytes | memoryview]:
    """Join the pieces between the large ones."""
    if not large:
        return [b"".join(pieces)]
    chunks: list[bytes | memoryview] = []
    start = 0
    for index in large:
        if index > start:
            chunks.append(b"".join(pieces[start:index]))
        chunks.append(pieces[index])
        start = index + 1
    if start < len(pieces):
        chunks.append(b"".join(pieces[start:]))
    return chunks
