"""Declares messages as annotated classes, and turns them into bytes and back.

    @part
    class Ask:
        partition: Int32 = 0
        current_leader_epoch: Int32 = field("2+", default=-1)

One declaration serves every version: a field that a version lacks keeps its default when parsed and is dropped when
built. What a class means on the wire is decided by `layout` and lowered to straight-line code on first use, so that
importing declarations costs next to nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar, dataclass_transform

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

LARGE_BYTES = 4096
"""Records of this size and above are handed on as they are; below it, copying is cheaper than another buffer."""


class Field(NamedTuple):
    """What a declaration says of a field beyond its type; see `field`."""

    versions: str
    default: Any
    tag: int | None
    nullable: str | None


UNSET: Any = object()


def field(versions: str = "0+", *, default: Any = UNSET, tag: int | None = None, nullable: str | None = None) -> Any:
    """A field that is not simply there in all versions.

    versions: "3", "2-4" or "2+". default: where it is not the type's zero. tag: the field is tagged (KIP-482).
    nullable: the versions in which it may be null, where these are not all; the annotation then says `| None`.
    A tagged structure has the default None, which says "not sent".
    """
    return Field(versions, default, tag, nullable)


class Part:
    """What every declared class can do: be built by keyword, compared and shown."""

    __slots__ = ()
    _declared: tuple[tuple[str, Any, Any], ...] = ()
    _versions = "0+"
    _flexible: int | None = None
    _key: int | None = None
    _parsers: dict[int, Callable[[Buffer, int], Any]]
    _builders: dict[int, Callable[[Any, list[Any], list[int]], None]]
    _others: dict[tuple[str, int], Any]
    """Parsers and builders of other kinds, by kind and version."""

    def __init__(self, **values: Any) -> None:
        from kpybroker.wire.codec.layout import make_init

        made = make_init(type(self))  # on first use: most classes are never built
        type.__setattr__(type(self), "__init__", made)
        made(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name, _, _ in self._declared)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name, _, _ in self._declared)
        return f"{type(self).__name__}({shown})"


def _seal(cls: type[T], facts: dict[str, Any]) -> type[T]:
    """The class with slots: the declared values would shadow them, so it is made anew."""
    declared = cls.__annotations__
    body = {name: value for name, value in vars(cls).items() if name not in declared}
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    body.update(
        facts,
        __slots__=tuple(declared),
        _declared=tuple((name, kind, vars(cls).get(name, UNSET)) for name, kind in declared.items()),
    )
    sealed: Any = type(cls.__name__, (Part,), body)
    made: type[T] = sealed
    return made


@dataclass_transform(kw_only_default=True)
def part(cls: type[T]) -> type[T]:
    """A structure inside messages."""
    return _seal(cls, {})


@dataclass_transform(kw_only_default=True)
def message(versions: str, *, flexible: int | None = None, key: int | None = None) -> Callable[[type[T]], type[T]]:
    """A whole message. versions: those that exist; flexible: the first with compact lengths and tagged fields, if any;
    key: the number by which a log knows this kind of record, where it has one."""

    def seal(cls: type[T]) -> type[T]:
        facts = {"_versions": versions, "_flexible": flexible, "_key": key}
        return _seal(cls, {**facts, "_parsers": {}, "_builders": {}, "_others": {}})

    return seal


def key_of(cls: Any) -> Any:
    """The number by which a log knows this kind of record; None where it has none."""
    return cls._key


def last_version(cls: Any) -> int:
    """The highest version that a message exists in."""
    return int(cls._versions.rpartition("-")[2])


def parser(cls: type[T], version: int) -> Callable[[Buffer, int], T]:
    """The function behind `parse`, for those who parse the same message again and again."""
    declared: Any = cls  # a Part, which `message` made of it
    found: Callable[[Buffer, int], T] | None = declared._parsers.get(version)
    if found is None:
        from kpybroker.wire.codec.parsing import lower_parser

        found = declared._parsers[version] = lower_parser(cls, version)
    return found


def parser_at_once(cls: type[T], version: int) -> Callable[[Buffer, int], T]:
    """As `parser`, for requests of few elements (`parsing.ELEMENTS_AT_ONCE`). Raises ManyElements for others."""
    from kpybroker.wire.codec.parsing import Reading, lower_parser

    found: Callable[[Buffer, int], T] = _lowered(
        cls, version, "at once", lambda: lower_parser(cls, version, reading=Reading.AT_ONCE)
    )
    return found


def parse_in_turns(
    cls: type[T], version: int, frame: bytes | memoryview, pos: int, most: int
) -> Generator[None, None, T]:
    """A request of many elements: yields now and then, and returns it. Its records are views of the frame.

    Raises MalformedFrame, also for more than `most` elements.
    """
    from kpybroker.wire.codec.parsing import lower_parser_in_turns

    read = _lowered(cls, version, "parse in turns", lambda: lower_parser_in_turns(cls, version))
    found: Generator[None, None, T] = read(frame, pos, most)
    return found


def build_in_turns(message: Any, version: int) -> Generator[None, None, bytes]:
    """As `build`; yields now and then. The message must not change meanwhile."""
    return b"".join((yield from build_chunks_in_turns(message, version)))


def build_chunks_in_turns(message: Any, version: int) -> Generator[None, None, list[bytes | memoryview]]:
    """As `build_chunks`; yields now and then. What was built since the last yield is one chunk: there are millions of
    pieces, and to join them at the end would take longer than all others may wait."""
    from kpybroker.wire.codec.building import lower_builder

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
        raise ValueError(_complaint(message, version) or str(error)) from error
    return chunks + merge(pieces, large)


def _lowered(cls: Any, version: int, kind: str, lower: Callable[[], Any]) -> Any:
    found = cls._others.get((kind, version))
    if found is None:
        found = cls._others[kind, version] = lower()
    return found


def parse(cls: type[T], version: int, view: Buffer, pos: int = 0) -> T:
    """The message that fills view from pos to its end. Its records are views of it. Raises MalformedFrame.

    Bytes behind a request are ignored, as Kafka does; behind any other message they are refused.
    """
    return parser(cls, version)(view, pos)


def parse_prefix(cls: type[T], version: int, view: Buffer, pos: int = 0) -> tuple[T, int]:
    """The message that starts at pos, and the position behind it. Raises MalformedFrame."""
    declared: Any = cls
    lowered = declared._parsers.get(~version)  # beside the whole-frame parsers; no version is negative
    if lowered is None:
        from kpybroker.wire.codec.parsing import lower_parser

        lowered = declared._parsers[~version] = lower_parser(cls, version, prefix=True)
    found: tuple[T, int] = lowered(view, pos)
    return found


def pieces_of(message: Any, version: int) -> tuple[list[Any], list[int]]:
    """The message's buffers in order, and which of them are large records (indices). ValueError: cannot be encoded."""
    builder = message._builders.get(version)
    if builder is None:
        from kpybroker.wire.codec.building import lower_builder

        builder = message._builders[version] = lower_builder(type(message), version)
    pieces: list[Any] = []
    large: list[int] = []
    try:
        builder(message, pieces, large)
    except (struct.error, AttributeError, TypeError, ValueError) as error:
        raise ValueError(_complaint(message, version) or str(error)) from error
    return pieces, large


def _complaint(message: Any, version: int) -> str | None:
    from kpybroker.wire.codec.layout import complaint

    return complaint(message, version)


def build(message: Any, version: int) -> bytes:
    """The message's bytes in this version. ValueError names the field that cannot be encoded."""
    return b"".join(pieces_of(message, version)[0])


def build_chunks(message: Any, version: int) -> list[bytes | memoryview]:
    """As `build`, but records of `LARGE_BYTES` and more stay separate buffers, uncopied."""
    return merge(*pieces_of(message, version))


def merge(pieces: list[Any], large: list[int]) -> list[bytes | memoryview]:
    """Join all that lies between the large pieces."""
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
