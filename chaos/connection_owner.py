"""Finds the process that opened a connection: by the socket's inode (sock_diag, Linux) and the open files in /proc."""

import contextlib
import os
import socket
import struct
from collections.abc import Mapping

CLIENTS = 0
"""Stands for all processes that are not nodes."""
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
HEADER = struct.Struct("=IHHII")
ASKED = struct.Struct("=BBBBI")
ENDS = struct.Struct(">HH4s12s4s12s")
ANY_DEVICE_AND_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
EVERY_STATE = 0xFFFFFFFF
INODE_AT = HEADER.size + 4 + ENDS.size + len(ANY_DEVICE_AND_COOKIE) + 16
"""The position of the inode in the response: it follows the state, the addresses, the expiry, two queue sizes and the
user id."""
LOOPBACK = socket.inet_aton("127.0.0.1")


def dialler(port: int, to_port: int, pids: Mapping[int, int]) -> int:
    """Return the node whose process opened the connection from `port` to `to_port` on 127.0.0.1; CLIENTS if no node
    opened it.

    pids: node id -> process id.
    """
    wanted = f"socket:[{_inode(port, to_port)}]"
    for node_id, pid in pids.items():
        if _holds(pid, wanted):
            return node_id
    return CLIENTS


def _inode(port: int, to_port: int) -> int:
    """The inode of the socket; 0 if it no longer exists."""
    asked = ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, EVERY_STATE)
    asked += ENDS.pack(port, to_port, LOOPBACK, bytes(12), LOOPBACK, bytes(12)) + ANY_DEVICE_AND_COOKIE
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.send(HEADER.pack(HEADER.size + len(asked), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0) + asked)
        answer = kernel.recv(8192)
    if HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        return 0
    return int(struct.unpack_from("=I", answer, INODE_AT)[0])


def _holds(pid: int, wanted: str) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    for name in names:
        with contextlib.suppress(OSError):
            if os.readlink(f"{directory}/{name}") == wanted:
                return True
    return False
