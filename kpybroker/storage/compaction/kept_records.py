"""Decides which records of a batch a cleaning keeps."""

from __future__ import annotations

from kpybroker.storage.compaction.offset_map import OffsetMap
from kpybroker.wire.records.batch import Batch
from kpybroker.wire.records.record_removal import Found

_NO_DELTA = -(1 << 63)


class KeptRecords:
    """The records of one batch that are kept. `known` has the offsets of the keys.

    A record of a marker, and a record that the map does not cover, is always kept. Of the others, those are kept that
    are the newest of their key, except tombstones if `tombstones_go`.
    """

    __slots__ = (
        "_base_offset",
        "_is_control",
        "_known",
        "_tombstones_go",
        "count",
        "has_tombstones",
        "newest_delta",
        "runs",
    )

    def __init__(self, batch: Batch, known: OffsetMap, *, tombstones_go: bool) -> None:
        self._base_offset = batch.base_offset
        self._is_control = batch.is_control
        self._known = known
        self._tombstones_go = tombstones_go
        self.runs: list[list[int]] = []
        """Consecutive records: the position of their first byte, the position after their last byte, and their
        number."""
        self.count = 0
        self.newest_delta = _NO_DELTA
        """The largest timestamp delta of the kept records."""
        self.has_tombstones = False

    def judge(self, found: list[Found]) -> None:
        """Add those of the next records of the batch that are kept."""
        known, runs, base_offset = self._known, self.runs, self._base_offset
        for begin, end, delta, offset_delta, key, has_value in found:
            offset = base_offset + offset_delta
            is_judged = offset <= known.latest and not self._is_control
            if is_judged and (key is None or known.is_replaced(key, offset) or (self._tombstones_go and not has_value)):
                continue
            self.count += 1
            if not has_value:
                self.has_tombstones = True
            if delta > self.newest_delta:
                self.newest_delta = delta
            if runs and runs[-1][1] == begin:
                runs[-1][1] = end
                runs[-1][2] += 1
            else:
                runs.append([begin, end, 1])
