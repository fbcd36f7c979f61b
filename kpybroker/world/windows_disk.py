"""Files on Windows."""

from __future__ import annotations

import ntpath
import os
from collections.abc import Callable
from time import monotonic, sleep

from kpybroker.world.portable_disk import PortableDisk

PATIENCE_S = 0.5
_AGAIN_S = 0.01
_VERBATIM = "\\\\?\\"


def windows_path(path: str) -> str:
    """A path that Windows takes as it is. Otherwise it would refuse paths of 260 characters or more, and names such as
    `con.t-0`, although Kafka allows topics with such names."""
    if not ntpath.isabs(path):
        path = ntpath.join(os.getcwd(), path)
    whole = ntpath.normpath(path)
    if whole.startswith(_VERBATIM):
        return whole
    return f"{_VERBATIM}UNC{whole[1:]}" if whole.startswith("\\\\") else _VERBATIM + whole


def persistently(work: Callable[[], None]) -> None:
    """Repeat work that is refused while another program, such as a virus scanner, has the file open.

    Raises PermissionError after PATIENCE_S.
    """
    until_s = monotonic() + PATIENCE_S
    while True:
        try:
            work()
            return
        except PermissionError:
            if monotonic() >= until_s:
                raise
        sleep(_AGAIN_S)


class WindowsDisk(PortableDisk):
    """Files of Windows, which other programs may have open for a moment."""

    def _native(self, path: str) -> str:
        return windows_path(path)

    def _rename(self, old: str, new: str) -> None:
        persistently(lambda: super(WindowsDisk, self)._rename(old, new))

    def _unlink(self, path: str) -> None:
        persistently(lambda: super(WindowsDisk, self)._unlink(path))

    def rmdir(self, path: str) -> None:
        persistently(lambda: super(WindowsDisk, self).rmdir(path))
