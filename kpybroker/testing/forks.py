"""Forked children of the test's process, for example those of multiprocessing: they do not keep brokers alive.

A broker ends when the pipe to it is closed at the end of the tests. A child would hold this pipe open, so it lets go of
it. The brokers belong to the process that has started them.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import IO

from kpybroker.world import processes

_pipes: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()


def keep_from_children(pipe: IO[bytes] | None) -> None:
    """Have each child that is forked from now on let go of this pipe."""
    assert pipe is not None
    _pipes.add(pipe)


def _let_go() -> None:
    """Replace the pipes with the null device. Their objects would close a number that has another meaning by then."""
    null = os.open(os.devnull, os.O_RDWR)
    for pipe in list(_pipes):
        with contextlib.suppress(ValueError):  # closed in the meantime
            os.dup2(null, pipe.fileno(), inheritable=False)
    os.close(null)
    _pipes.clear()


processes.after_fork(_let_go)
