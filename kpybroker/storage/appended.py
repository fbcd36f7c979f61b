"""What an append tells whoever asked for it."""

from __future__ import annotations

from typing import NamedTuple


class Appended(NamedTuple):
    """Where a batch is. A duplicate has the offsets of the batch it repeats. Times are -1 with CreateTime."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int = -1
    duplicate: bool = False
