"""Which process dialled? The kernel's table of connections and of open files says it (Linux)."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

CLIENTS = 0
"""Stands for every process that is no node."""
TABLE = Path("/proc/net/tcp")


def dialler(port: int, to_port: int, pids: Mapping[int, int]) -> int:
    """The node whose process has the connection from `port` to `to_port`, both on this machine; CLIENTS for others.

    pids: node id -> process id.
    """
    inode = _inode(port, to_port)
    if inode is None:
        return CLIENTS
    wanted = f"socket:[{inode}]"
    for node_id, pid in pids.items():
        if _holds(pid, wanted):
            return node_id
    return CLIENTS


def _inode(port: int, to_port: int) -> str | None:
    local, remote = f":{port:04X}", f":{to_port:04X}"
    for line in TABLE.read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(local) and fields[2].endswith(remote):
            return fields[9]
    return None


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
