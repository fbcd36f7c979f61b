"""How replies go out: small ones joined into one send, large ones as they are."""

from __future__ import annotations

import asyncio
from typing import Any

SMALL_WRITE_BYTES = 64 * 1024


def write_all(transport: asyncio.Transport, out: list[Any]) -> None:
    """Write buffers in order, with as few sends and copies as possible."""
    small: list[Any] = []
    for piece in out:
        if len(piece) < SMALL_WRITE_BYTES:
            small.append(piece)
            continue
        if small:
            transport.write(b"".join(small))
            small = []
        transport.write(piece)
    if small:
        transport.write(b"".join(small) if len(small) > 1 else small[0])
