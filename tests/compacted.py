"""Compacts the logs of coordinators in tests; a replay of a compacted log must produce the same machine."""

from __future__ import annotations

from random import Random

from kpybroker.machine.contract import Stored


def compacted(log: list[Stored], chance: Random) -> list[Stored]:
    """The log with only the newest record of each key below some offset, with all tombstones or none. Offsets are
    positions in `log`."""
    end = chance.randint(0, len(log))
    drops = chance.random() < 0.5
    newest = {record.key: place for place, record in enumerate(log[:end])}
    return [
        record
        for place, record in enumerate(log)
        if place >= end or (newest[record.key] == place and not (drops and record.value is None))
    ]
