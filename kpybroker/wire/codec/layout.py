"""The layout of a declared class on the wire in one version, as a tree of simple pieces.

`lowering` generates code from this tree. A test creates `construct` objects from the same tree, and both must agree on
every input (docs/decisions/0001-lowered-and-interpreted.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple, get_args, get_origin

from kpybroker.wire.codec.message import UNSET, Field, fields_of, is_part, without_none
from kpybroker.wire.codec.primitives import TEXT_LIMIT_BYTES


class Fixed(NamedTuple):
    """A value of fixed width. `code` is a big-endian code of the module struct."""

    code: str


class Text(NamedTuple):
    """A UTF-8 string, preceded by its length."""

    compact: bool
    nullable: bool


class Blob(NamedTuple):
    """Bytes, preceded by their length. Records are a view of the frame."""

    compact: bool
    nullable: bool
    view: bool


class Array(NamedTuple):
    """Elements, preceded by their count."""

    compact: bool
    nullable: bool
    element: Piece


class Tagged(NamedTuple):
    """A tagged field, which is sent only if its value differs from the default."""

    tag: int
    name: str
    piece: Piece
    default: Any


class Struct(NamedTuple):
    """Fields in order, followed by the tagged fields.

    `tagged` is None if the version has no tagged fields at all. `absent` has the fields that this version lacks, with
    the values that the parser sets. If `nullable` is true, a byte before the fields is 1, or 255 for null (0 for null
    in a tagged field).
    """

    cls: type
    members: tuple[tuple[str, Piece], ...]
    absent: tuple[tuple[str, Any], ...]
    tagged: tuple[Tagged, ...] | None
    nullable: bool


Piece = Fixed | Text | Blob | Array | Struct


def in_versions(versions: str, version: int) -> bool:
    """Whether "3", "2-4", "2+" or "none" includes this version."""
    if versions == "none":
        return False
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    first, _, last = versions.partition("-")
    return int(first) <= version <= int(last or first)


def layout(cls: Any, version: int) -> Struct:
    """The layout of a message class in one of its versions."""
    assert in_versions(cls._versions, version), f"{cls.__module__}.{cls.__name__} has no version {version}"
    flexible = cls.first_flexible is not None and version >= cls.first_flexible
    return _struct(cls, version, flexible, nullable=False)


def is_request(cls: Any) -> bool:
    """Whether the class is a request. Bytes after a request are ignored, as in Kafka; after other messages they are
    refused."""
    return bool(cls.__name__ == "Request")


def _struct(cls: Any, version: int, flexible: bool, nullable: bool) -> Struct:
    members: list[tuple[str, Piece]] = []
    absent: list[tuple[str, Any]] = []
    tagged: list[Tagged] = []
    for name, kind, said in fields_of(cls):
        if not in_versions(said.versions, version):
            absent.append((name, said.default))
            continue
        piece = _piece(kind, said, version, flexible)
        if said.tag is not None and flexible:
            tagged.append(Tagged(said.tag, name, piece, said.default))
        else:
            assert said.tag is None, f"{cls.__name__}.{name} is tagged in a version without tags"
            members.append((name, piece))
    tagged.sort(key=lambda each: each.tag)
    return Struct(cls, tuple(members), tuple(absent), tuple(tagged) if flexible else None, nullable)


def _piece(kind: Any, said: Field, version: int, flexible: bool) -> Piece:
    assert not isinstance(kind, str), "a module of declarations must not use `from __future__ import annotations`"
    kind, optional = without_none(kind)
    if is_part(kind) and said.tag is not None and said.nullable is None:
        optional = False  # in a tagged field, None means "not sent"
    nullable = in_versions(said.nullable, version) if said.nullable is not None else optional
    if get_origin(kind) is list:
        return Array(flexible, nullable, _piece(get_args(kind)[0], Field("0+", UNSET, None, None), version, flexible))
    if kind is str:
        return Text(flexible, nullable)
    if kind is bytes or kind == "records":
        return Blob(flexible, nullable, view=kind == "records")
    if is_part(kind):
        return _struct(kind, version, flexible, nullable)
    return Fixed({bool: "?", float: "d"}.get(kind, kind))


def complaint(message: Any, version: int) -> str | None:
    """An error text for the field of a message that cannot be encoded in this version; None if all fields can."""
    return _complaint(message, layout(type(message), version), f"{type(message).__name__} v{version}")


_RANGES = {
    "b": (-(2**7), 2**7),
    "h": (-(2**15), 2**15),
    "i": (-(2**31), 2**31),
    "q": (-(2**63), 2**63),
    "H": (0, 2**16),
}


def _complaint(value: Any, piece: Piece, path: str) -> str | None:
    if value is None:
        return None if not isinstance(piece, Fixed) and piece.nullable else f"{path}: null is not allowed"
    if isinstance(piece, Struct):
        if not isinstance(value, piece.cls):
            return f"{path}: {type(value).__name__} instead of {piece.cls.__name__}"
        parts = list(piece.members)
        parts += [(each.name, each.piece) for each in piece.tagged or () if getattr(value, each.name) != each.default]
        found = (_complaint(getattr(value, name), each, f"{path}.{name}") for name, each in parts)
        return next(filter(None, found), None)
    if isinstance(piece, Array):
        if not isinstance(value, list | tuple):
            return f"{path}: {type(value).__name__} instead of a list"
        found = (_complaint(item, piece.element, f"{path}[{index}]") for index, item in enumerate(value))
        return next(filter(None, found), None)
    return _scalar_complaint(value, piece, path)


def _scalar_complaint(value: Any, piece: Fixed | Text | Blob, path: str) -> str | None:
    if isinstance(piece, Text):
        if not isinstance(value, str):
            return f"{path}: {type(value).__name__} instead of str"
        size_bytes = len(value.encode("utf-8", "surrogatepass"))
        if size_bytes > TEXT_LIMIT_BYTES:
            return f"{path}: a string of {size_bytes} bytes, at most {TEXT_LIMIT_BYTES} fit"
        return None if value.isascii() or _encodes(value) else f"{path}: not encodable as UTF-8"
    if isinstance(piece, Blob):
        kinds = bytes | bytearray | memoryview | list if piece.view else bytes | bytearray | memoryview
        return None if isinstance(value, kinds) else f"{path}: {type(value).__name__} instead of bytes"
    if piece.code == "16s":
        right = isinstance(value, bytes) and len(value) == 16
        return None if right else f"{path}: {value!r} is not a uuid of 16 bytes"
    if piece.code in _RANGES:
        low, high = _RANGES[piece.code]
        right = isinstance(value, int) and low <= value < high
        return None if right else f"{path}: {value!r} does not fit in {piece.code!r}"
    return None


def _encodes(value: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in value)
