"""A log gets the files that a step needs before the step changes anything: where descriptors are short it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.errors import Damage

if TYPE_CHECKING:
    from kpybroker.storage.log.log import Log


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


def open_aborted(log: Log) -> None:
    """Have the active segment's transaction index in memory, before a marker comes. Raises as `open_active` does."""
    try:
        log.segments.active.aborted.load()
    except (OSError, Damage) as error:
        raise log.refusal(error) from error
