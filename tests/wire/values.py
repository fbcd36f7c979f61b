"""Creates random messages of any layout, from a source of randomness that hypothesis or a seed controls."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from kpybroker.wire.codec import layout as pieces

EDGES = {"b": 7, "h": 15, "i": 31, "q": 63}
TEXTS = ("", "t", "topic-1", "ärger", "空", "🎈", "x" * 126, "x" * 127, "y" * 200)
SIZES = (0, 0, 1, 1, 2, 3)


def arbitrary(piece: pieces.Piece, random: Random, nullable: bool = False) -> Any:
    """A random value for this piece, which is small and often at a limit."""
    if not isinstance(piece, pieces.Fixed) and piece.nullable and random.randrange(3) == 0:
        return None
    if isinstance(piece, pieces.Fixed):
        return _fixed(piece.code, random)
    if isinstance(piece, pieces.Text):
        return random.choice(TEXTS)
    if isinstance(piece, pieces.Blob):
        return bytes(random.randrange(256) for _ in range(random.choice((0, 1, 5, 127, 130))))
    if isinstance(piece, pieces.Array):
        fixed = isinstance(piece.element, pieces.Fixed)
        size = random.choice((0, 1, 3, 63, 64, 65, 127, 130)) if fixed and random.randrange(8) == 0 else 0
        return [arbitrary(piece.element, random) for _ in range(size or random.choice(SIZES))]
    values = {name: arbitrary(member, random) for name, member in piece.members}
    for each in piece.tagged or ():
        if random.randrange(2):
            values[each.name] = arbitrary(each.piece, random)
    return piece.cls(**values)


def _fixed(code: str, random: Random) -> Any:
    if code == "?":
        return bool(random.randrange(2))
    if code == "16s":
        return bytes(16) if random.randrange(3) == 0 else bytes(random.randrange(256) for _ in range(16))
    if code == "d":
        return struct.unpack(">f", random.randrange(1 << 23, 1 << 30).to_bytes(4, "big"))[0]
    if code == "H":
        return random.choice((0, 1, 0x7FFF, 0xFFFF))
    edge = 1 << EDGES[code]
    return random.choice((0, 1, -1, edge - 1, -edge, random.randrange(-edge, edge)))


def mutated(data: bytes, random: Random) -> bytes:
    """The frame, truncated, lengthened, or with changed bytes at positions where lengths and counts usually are."""
    way = random.randrange(4)
    if way == 0 or not data:
        return data[: random.randrange(len(data) + 1)]
    if way == 1:
        return data + bytes((random.randrange(256),))
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        place = random.randrange(len(changed))
        changed[place] = random.choice((0, 1, 2, 0x7F, 0x80, 0xFF, random.randrange(256)))
    if way == 3:
        place = random.randrange(len(changed) + 1)
        changed[place:place] = random.choice((b"\xff\xff\xff\xff\x0f", b"\x80" * 6, b"\x7f\xff\xff\xff", b"\x01\x00"))
    return bytes(changed)
