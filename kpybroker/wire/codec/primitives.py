"""The scalar types of the protocol, and the functions that generated code calls in rare cases.

In a declaration such as `partition: Int32`, a type checker sees an int. `str`, `bytes`, `bool` and `float` stand for
Kafka's string, bytes, bool and float64, `list[X]` for an array. Source: the Kafka protocol guide, "Protocol Primitive
Types"; KIP-482 for compact lengths and tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any, NoReturn

from kpybroker.errors import MalformedFrame

Int8 = Annotated[int, "b"]
Int16 = Annotated[int, "h"]
Int32 = Annotated[int, "i"]
Int64 = Annotated[int, "q"]
Uint16 = Annotated[int, "H"]
Uuid = Annotated[bytes, "16s"]
"""16 raw bytes, big-endian; `ZERO_UUID` means none."""
Records = Annotated[memoryview | bytes | None, "records"]
"""Record batches. When parsed, they are a view of the frame, without a copy."""
RecordChunks = Annotated[memoryview | bytes | list[memoryview | bytes] | None, "records"]
"""Record batches to send, in one or several pieces, which `build_chunks` does not copy."""

ZERO_UUID = bytes(16)
TEXT_LIMIT_BYTES = 32767
"""The longest string that Kafka accepts in either encoding, although a compact length could be greater."""

ONE_BYTE = tuple(bytes((value,)) for value in range(128))
_TWO_BYTES: Callable[[int, int], bytes] = struct.Struct("BB").pack
"""All varints of one byte."""


def refuse(reason: str) -> NoReturn:
    """Raise MalformedFrame. This function keeps the generated code short."""
    raise MalformedFrame(reason)


def read_uvarint(data: Any, pos: int) -> tuple[int, int]:
    """The unsigned varint at `pos`, and the position after it. Raises IndexError past the end, MalformedFrame above 32
    bits."""
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            refuse("a varint of more than five bytes")
    if value > 0xFFFFFFFF:
        refuse("a varint of more than 32 bits")
    return value, pos


UNKNOWN_TAGS_MAX = 127
"""The most unknown tagged fields of one structure. A newer sender may send a few."""


def skip_tagged(data: Any, pos: int) -> int:
    """The position after the tagged fields at `pos`, which are all unknown. Raises IndexError or MalformedFrame past
    the end."""
    count, pos = read_uvarint(data, pos)
    if count > min(len(data) - pos, UNKNOWN_TAGS_MAX):
        refuse(f"{count} tagged fields")
    for _ in range(count):
        _, pos = read_uvarint(data, pos)
        size_bytes, pos = read_uvarint(data, pos)
        pos += size_bytes
        if pos > len(data):
            refuse("a tagged field is longer than the frame")
    return pos


def write_uvarint(value: int) -> bytes:
    """Encode a value of at most 32 bits as an unsigned varint."""
    if value < 128:
        return ONE_BYTE[value]
    if value < 0x4000:
        return _TWO_BYTES(value & 0x7F | 0x80, value >> 7)
    assert value <= 0xFFFFFFFF, f"{value} does not fit into a varint"
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_text_length(length_plus_one: int) -> bytes:
    """Encode the compact length of a string of more than 126 bytes. Raises ValueError above `TEXT_LIMIT_BYTES`."""
    if length_plus_one - 1 > TEXT_LIMIT_BYTES:
        raise ValueError(f"a string of {length_plus_one - 1} bytes, at most {TEXT_LIMIT_BYTES} fit")
    return write_uvarint(length_plus_one)


def read_long_text(data: Any, pos: int, nullable: bool) -> tuple[str | None, int]:
    """The compact string at `pos`, and the position after it, for a length of more than one byte or null."""
    length, pos = read_uvarint(data, pos)
    if length == 0:
        return (None, pos) if nullable else refuse("null where a string is required")
    if length - 1 > TEXT_LIMIT_BYTES:
        refuse(f"a string of {length - 1} bytes")
    stop = pos + length - 1
    return str(data[pos:stop], "utf-8"), stop


class ManyElements(Exception):
    """Raised for a request with too many elements to parse at once. It is not an error: the request is parsed in
    turns."""


def refuse_at_once() -> NoReturn:
    """Raise ManyElements."""
    raise ManyElements


class Unpackers(dict[int, Callable[..., tuple[Any, ...]]]):
    """`Unpackers("q")[n](data, pos)` returns n int64 values as a tuple. The caller has checked that the data contains
    them."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __missing__(self, count: int) -> Callable[..., tuple[Any, ...]]:
        unpack: Callable[..., tuple[Any, ...]] = struct.Struct(f">{self._code * count}").unpack_from
        if count <= KEPT_COUNT:
            self[count] = unpack
        return unpack


KEPT_COUNT, KEPT_SHAPES = 16, 256
"""Packers are cached for arrays up to this size, and for this number of combinations of sizes."""


class Packers(dict[tuple[int, ...], Callable[..., bytes]]):
    """Packers of fixed-width values and arrays of such values, by the sizes of the arrays.

    `Packers(("i", "*Bq"))[2,](7, 3, *values)` packs the int32 7, then 3 (the count plus one) and the two int64 values
    of a compact array.
    """

    def __init__(self, codes: tuple[str, ...]) -> None:
        self._codes = codes

    def __missing__(self, sizes: tuple[int, ...]) -> Callable[..., bytes]:
        if max(sizes) > 126 and any(code.startswith("*B") for code in self._codes):
            return self._pack_long
        left = iter(sizes)
        codes = [code[1] + code[2:] * next(left) if code[0] == "*" else code for code in self._codes]
        pack: Callable[..., bytes] = struct.Struct(">" + "".join(codes)).pack
        if max(sizes) <= KEPT_COUNT and len(self) < KEPT_SHAPES:
            self[sizes] = pack
        return pack

    def _pack_long(self, *values: Any) -> bytes:
        """Pack values with counts of more than one byte."""
        out, left = [], iter(values)
        for code in self._codes:
            if code[0] != "*":
                out.append(struct.pack(">" + code, *(() if code == "x" else (next(left),))))
                continue
            count = next(left)
            out.append(write_uvarint(count) if code[1] == "B" else struct.pack(">i", count))
            count -= code[1] == "B"
            out.append(struct.pack(f">{code[2:] * count}", *islice(left, count)))
        return b"".join(out)
