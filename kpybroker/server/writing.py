"""How replies go out: small ones joined into one send, large ones as they are."""

from __future__ import annotations

import asyncio
from typing import Any

SMALL_WRITE_BYTES = 16 * 1024


def write_all(transport: asyncio.Transport, out: list[Any]) -> list[Any]:
    """Write buffers in order, with as few sends and copies as possible.

    Returned are the large ones: the transport may hold them until it has sent them.
    """
    large = [piece for piece in out if len(piece) >= SMALL_WRITE_BYTES]
    if large:
        transport.writelines(out)
    else:
        transport.write(b"".join(out))
    return large
