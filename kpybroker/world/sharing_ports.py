"""The socket option with which a port has one listener, and has another soon after that one has ended."""

from __future__ import annotations

import socket
import sys


def keep_for_one(listening: socket.socket) -> None:
    """Set the option before the socket is bound. Raises OSError."""
    if sys.platform == "win32":
        # there, SO_REUSEADDR would let a second broker listen on the port of the first
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
