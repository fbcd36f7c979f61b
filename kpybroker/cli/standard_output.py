"""Records errors of standard output, because an OSError alone does not show which file could not be written."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class _File(io.FileIO):
    failure: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise  # the reader has closed the pipe, which is not a failure
        except OSError as error:
            self.failure = error
            raise


def watch() -> None:
    """From now on `failure` reports errors of this process's stdout."""
    old = sys.stdout
    if old is None:  # stdout was closed before the start
        sys.stdout = io.TextIOWrapper(io.FileIO(os.devnull, "wb"))
        return
    if sys.platform == "win32" and old.isatty():
        return  # a console takes UTF-16, not the bytes of a file, and does not fail
    buffered = io.BufferedWriter(_File(old.fileno(), "wb", closefd=False))
    is_unbuffered = bool(getattr(old, "write_through", False))
    sys.stdout = io.TextIOWrapper(
        buffered, old.encoding, old.errors, line_buffering=bool(old.line_buffering), write_through=is_unbuffered
    )


def failure() -> str | None:
    """An error text if stdout could not be written to; None if it could, or if it is not watched."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    error = raw.failure if isinstance(raw, _File) else None
    return None if error is None else f"cannot write to standard output: {error.strerror or error}"
