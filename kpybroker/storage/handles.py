"""A log gets the files that a step needs before the step changes anything: where descriptors are short it refuses."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kpybroker.errors import Damage
from kpybroker.storage.segment import LOG, Segment

if TYPE_CHECKING:
    from kpybroker.storage.log import Log

_log = logging.getLogger(__name__)


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


def fail_write(log: Log, segment: Segment, position: int, error: OSError) -> Damage:
    """A write from `position` on has failed: the log is offline; what was written of it is cut off, if it can be."""
    damage = log.fail(error)
    try:
        log.world.disk.truncate(segment.handle(), position)
    except OSError:
        _log.warning("%s%s may end in a torn batch; recovery cuts it", segment.path, LOG)
    return damage
