"""Makes sure that the bytes of a file are on its device."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

if sys.platform != "win32":
    import fcntl

FULL_SYNC: int | None = None
if sys.platform != "win32":
    FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
"""F_FULLFSYNC of macOS, which also flushes the device's cache. fsync does not do this on macOS (fcntl(2))."""
_FULL_SYNC_UNKNOWN = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL})
_SYNC: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def sync_to_device(descriptor: int, sync: Callable[[int], None] = _SYNC) -> None:
    """Sync a file: its data, and the metadata that is needed to read it, are then on the device."""
    if sys.platform != "win32" and FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, FULL_SYNC)
            return
        except OSError as error:
            # the kernel reports a failed write only once, so a second sync would succeed
            if error.errno not in _FULL_SYNC_UNKNOWN:
                raise
    sync(descriptor)


def sync_directory_to_device(path: str) -> None:
    """Sync the names in a directory. On Windows this does nothing, as in Apache Kafka: a directory cannot be opened
    there, and NTFS writes its journal itself, within seconds."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_to_device(descriptor, os.fsync)  # file systems need not support fdatasync for directories
    finally:
        os.close(descriptor)
