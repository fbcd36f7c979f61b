"""An independent implementation of layouts with `construct`, which is slow and simple, for comparison with the
generated code.

It creates `construct` objects from the same tree. For any bytes, both must return the same value, or both must refuse.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import construct as c

from kpybroker.errors import MalformedFrame
from kpybroker.wire.codec import layout as pieces
from kpybroker.wire.codec.lowering import min_bytes
from kpybroker.wire.codec.message import default_source
from kpybroker.wire.codec.primitives import TEXT_LIMIT_BYTES

REFUSALS = (c.ConstructError, UnicodeDecodeError)


def parse(cls: Any, version: int, data: bytes) -> Any:
    """Like kpybroker.wire.codec.message.parse."""
    stream = io.BytesIO(data)
    try:
        found = interpreted(pieces.layout(cls, version)).parse_stream(stream)
    except REFUSALS as error:
        raise MalformedFrame(str(error)) from error
    if stream.tell() != len(data) and not pieces.is_request(cls):
        raise MalformedFrame("bytes left over")
    return found


def build(message: Any, version: int) -> bytes:
    """Like kpybroker.wire.codec.message.build."""
    built: bytes = interpreted(pieces.layout(type(message), version)).build(message)
    return built


def left(stream: Any) -> int:
    """The number of bytes from the current position to the end."""
    return len(stream.getbuffer()) - stream.tell()


class Uvarint(c.Construct):
    """The VarInt of `construct`, with Kafka's limits of five bytes and 32 bits."""

    def _parse(self, stream: Any, context: Any, path: Any) -> int:
        start = stream.tell()
        value: int = c.VarInt._parsereport(stream, context, path)
        if stream.tell() - start > 5 or value >= 1 << 32:
            raise c.IntegerError("varint too long", path)
        return value

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        return c.VarInt._build(obj, stream, context, path)


class Counted(c.Construct):
    """A length or count, and the body with this size. For null, it is -1, or 0 if it is compact."""

    def __init__(self, count: c.Construct, offset: int, nullable: bool, unit: int, body: Callable[[int], c.Construct]):
        super().__init__()
        self.count, self.offset, self.nullable, self.unit, self.body = count, offset, nullable, unit, body

    def _parse(self, stream: Any, context: Any, path: Any) -> Any:
        count = self.count._parsereport(stream, context, path) - self.offset
        if count < 0:
            if not self.nullable:
                raise c.ValidationError("null", path)
            return None
        if count * self.unit > left(stream):
            raise c.StreamError("more elements than bytes", path)
        return self.body(count)._parsereport(stream, context, path)

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        assert obj is not None or self.nullable, path
        count = -1 if obj is None else len(obj)
        self.count._build(count + self.offset, stream, context, path)
        return obj if obj is None else self.body(count)._build(obj, stream, context, path)


class Encoded(c.Adapter):
    """UTF-8 text of limited length, encoded as bytes."""

    def _decode(self, obj: Any, context: Any, path: Any) -> Any:
        if obj is not None and len(obj) > TEXT_LIMIT_BYTES:
            raise c.StringError("too long", path)
        return obj if obj is None else obj.decode()

    def _encode(self, obj: Any, context: Any, path: Any) -> Any:
        return obj if obj is None else obj.encode()


class Object(c.Construct):
    """Members in order, followed by the tagged fields, as an object of the declared class."""

    def __init__(self, piece: pieces.Struct, null: int = -1) -> None:
        super().__init__()
        self.piece = piece
        self.null = null
        self.members = [(name, interpreted(member)) for name, member in piece.members]
        self.tagged = {each.tag: (each, self._in_tag(each.piece)) for each in piece.tagged or ()}

    def _in_tag(self, piece: pieces.Piece) -> c.Construct:
        return Object(piece, null=0) if isinstance(piece, pieces.Struct) else interpreted(piece)

    def _parse(self, stream: Any, context: Any, path: Any) -> Any:
        if self.piece.nullable and c.Int8sb._parsereport(stream, context, path) <= self.null:
            return None
        values = {name: member._parsereport(stream, context, path) for name, member in self.members}
        values |= {name: _made(default) for name, default in self.piece.absent}
        if self.piece.tagged is not None:
            values |= {each.name: _made(each.default) for each, _ in self.tagged.values()}
            values |= self._parse_tagged(stream, context, path)
        return self.piece.cls(**values)

    def _parse_tagged(self, stream: Any, context: Any, path: Any) -> dict[str, Any]:
        values = {}
        for _ in range(UVARINT._parsereport(stream, context, path)):
            tag = UVARINT._parsereport(stream, context, path)
            size = UVARINT._parsereport(stream, context, path)
            if size > left(stream):
                raise c.StreamError("a tagged field past the end", path)
            body = io.BytesIO(stream.read(size))
            if tag in self.tagged:
                each, member = self.tagged[tag]
                values[each.name] = member._parsereport(body, context, path)
                if left(body):
                    raise c.StreamError("a tagged field with more than its value", path)
        return values

    def _build(self, obj: Any, stream: Any, context: Any, path: Any) -> Any:
        if self.piece.nullable:
            c.Int8sb._build(self.null if obj is None else 1, stream, context, path)
            if obj is None:
                return obj
        for name, member in self.members:
            member._build(getattr(obj, name), stream, context, path)
        if self.piece.tagged is not None:
            sent = [each for each in self.tagged.values() if getattr(obj, each[0].name) != _made(each[0].default)]
            UVARINT._build(len(sent), stream, context, path)
            for each, member in sent:
                body = member.build(getattr(obj, each.name))
                stream.write(UVARINT.build(each.tag) + UVARINT.build(len(body)) + body)
        return obj


def _made(default: Any) -> Any:
    """The value that a default stands for."""
    namespace: dict[str, Any] = {}
    return eval(default_source(default, namespace), namespace)


UVARINT = Uvarint()
FIXED = {
    "?": c.Flag,
    "b": c.Int8sb,
    "h": c.Int16sb,
    "H": c.Int16ub,
    "i": c.Int32sb,
    "q": c.Int64sb,
    "d": c.Float64b,
    "16s": c.Bytes(16),
}


def interpreted(piece: pieces.Piece) -> c.Construct:
    """The `construct` object for a piece."""
    if isinstance(piece, pieces.Fixed):
        return FIXED[piece.code]
    if isinstance(piece, pieces.Struct):
        return Object(piece)
    if isinstance(piece, pieces.Text):
        count = UVARINT if piece.compact else c.Int16sb
        return Encoded(Counted(count, int(piece.compact), piece.nullable, 1, c.Bytes))
    count = UVARINT if piece.compact else c.Int32sb
    if isinstance(piece, pieces.Blob):
        return Counted(count, int(piece.compact), piece.nullable, 1, c.Bytes)
    element = interpreted(piece.element)
    unit = max(1, min_bytes(piece.element))
    return c.ExprAdapter(
        Counted(count, int(piece.compact), piece.nullable, unit, lambda size: c.Array(size, element)),
        lambda found, _: None if found is None else list(found),
        lambda values, _: values,
    )
