"""Writes replies to a transport. Small replies are joined into one write, and large replies are not copied."""

from __future__ import annotations

import asyncio
from typing import Any, Final

SMALL_WRITE_BYTES: Final = 16 * 1024
HELD_BACK_BYTES: Final = 32 * 1024
"""Replies up to this size are sent after every ready connection has been read; larger replies are sent at once."""
OWED_LIMIT_BYTES: Final = 1024 * 1024
"""When the queued replies reach this size they are passed to the transport, which detects that a peer does not read."""


def write_all(transport: asyncio.Transport, out: list[Any]) -> list[Any]:
    """Write buffers in order, with as few writes and copies as possible.

    Return one view of each memory that may be a disk's read buffer: a ShareFetch response may contain several views of
    one. The transport may use this memory until it has sent it.
    """
    large = [piece for piece in out if len(piece) >= SMALL_WRITE_BYTES]
    if large:
        transport.writelines(out)
        if transport.get_write_buffer_size():
            # some releases of Python 3.12 and 3.13 do not check here whether the writer must pause (CVE-2024-12254)
            transport.set_write_buffer_limits()
    else:
        transport.write(b"".join(out))
    return list({id(piece.obj): piece for piece in large if type(piece) is memoryview}.values())
