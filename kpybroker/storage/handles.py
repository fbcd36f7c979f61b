"""A log gets its file before anything is queued for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kpybroker.storage.log import Log


def open_active(log: Log) -> None:
    """Have the active segment's file open: who finds no descriptor now has changed nothing, and may come again.

    Raises KAFKA_STORAGE_ERROR; the log is offline by any other error.
    """
    try:
        if not log.made:
            log.make()
        log.segments.active.handle()
    except OSError as error:
        raise log.refusal(error) from error
