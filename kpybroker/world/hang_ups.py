"""Finds out from the kernel whether a peer has closed its side, which asyncio does not report while reading is
paused."""

from __future__ import annotations

import asyncio
import select

_CLOSED = getattr(select, "POLLRDHUP", 0) | getattr(select, "POLLHUP", 0) | getattr(select, "POLLERR", 0)


def has_hung_up(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the peer has closed its side, even if data is unread. False if the system cannot determine this."""
    sock = None if transport is None else transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0 or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(sock.fileno(), _CLOSED)
    return bool(poll.poll(0))
