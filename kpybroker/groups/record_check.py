"""Whether a record of `__consumer_offsets` can be replayed: what a machine reads of it later, it has to say now."""

from __future__ import annotations

from kpybroker.errors import Damage, MalformedFrame
from kpybroker.groups.classic.records import read_group, read_group_id
from kpybroker.groups.consumer import records as modern_records
from kpybroker.groups.ground.record_keys import (
    FOREIGN_GROUP_METADATA,
    GROUP_METADATA,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    kind_of,
)
from kpybroker.groups.offsets.records import read_commit
from kpybroker.machine.contract import Stored


def check_record(record: Stored) -> None:
    """Read a record as a replay does, and the coordinator that begins after it. Raises Damage where they could not.

    Kinds that are not served are of no effect, whatever they say. What an offset commit says is kept in `message`.
    """
    key, value = record.key, record.value
    if key is None or record.message is not None:
        return
    kind = kind_of(key)
    try:
        if kind in (OFFSET_COMMIT, LEGACY_OFFSET_COMMIT):
            record.message = read_commit(record)
        elif kind == GROUP_METADATA:
            group_id = read_group_id(key)
            if value is not None:
                read_group(group_id, value, 0)
        elif kind in FOREIGN_GROUP_METADATA:
            read_group_id(key)
        elif kind in modern_records.KINDS:
            group_id = modern_records.group_of(key)
            if value is not None:
                modern_records.read_group(group_id, {bytes(key): bytes(value)})
    except MalformedFrame as unreadable:
        raise Damage(str(unreadable)) from unreadable
