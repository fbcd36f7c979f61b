"""Takes exclusive locks on files, which Java's FileLock respects."""

from __future__ import annotations

import errno
import sys

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_HELD = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK})


def lock_file(descriptor: int, path: str) -> None:
    """Lock an open file until it is closed. Raises BlockingIOError if another process has locked it, OSError."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # Java locks all possible bytes, so that one is enough
        else:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            raise BlockingIOError(error.errno, "locked by another process", path) from error
        raise
