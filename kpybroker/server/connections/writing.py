"""Sends replies: small ones joined into one send, large ones as they are."""

from __future__ import annotations

import asyncio
from typing import Any

SMALL_WRITE_BYTES = 16 * 1024
HELD_BACK_BYTES = 32 * 1024
"""Replies up to this size are sent when every connection that is ready has been read; larger ones at once."""
OWED_LIMIT_BYTES = 1024 * 1024
"""Replies are passed to the transport when they reach this size, so that a peer that does not read is noticed."""


def write_all(transport: asyncio.Transport, out: list[Any]) -> list[Any]:
    """Write buffers in order, with as few sends and copies as possible.

    Returns those that may be views of a disk's read buffer: the transport may hold them until it has sent them.
    """
    large = [piece for piece in out if len(piece) >= SMALL_WRITE_BYTES]
    if large:
        transport.writelines(out)
        if transport.get_write_buffer_size():
            # some releases of Python 3.12 and 3.13 do not check here whether the writer must pause (CVE-2024-12254)
            transport.set_write_buffer_limits()
    else:
        transport.write(b"".join(out))
    return [piece for piece in large if type(piece) is memoryview]
