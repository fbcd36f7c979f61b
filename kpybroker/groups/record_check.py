"""Checks whether a record of `__consumer_offsets` can be replayed."""

from __future__ import annotations

from kpybroker.errors import Damage, MalformedFrame
from kpybroker.groups.ground.record_keys import LEGACY_OFFSET_COMMIT, OFFSET_COMMIT, kind_of
from kpybroker.groups.kinds import BY_RECORD
from kpybroker.groups.offsets.records import read_commit
from kpybroker.machine.contract import Stored


def check_record(record: Stored) -> None:
    """Read a record in the same way as a replay and as the coordinator after it. Raises Damage if either would fail.

    Records of other kinds have no effect, regardless of their content. The decoded offset commit is kept in `message`.
    """
    key, value = record.key, record.value
    if key is None or record.message is not None:
        return
    kind = kind_of(key)
    try:
        if kind in (OFFSET_COMMIT, LEGACY_OFFSET_COMMIT):
            record.keep(read_commit(record))
        elif kind in BY_RECORD:
            BY_RECORD[kind].check_record(kind, key, value)
    except MalformedFrame as unreadable:
        raise Damage(str(unreadable)) from unreadable
