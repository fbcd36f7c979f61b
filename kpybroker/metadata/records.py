"""Metadata records that nothing here decides by, and that must survive a snapshot all the same."""

from __future__ import annotations

from typing import Any

from kpybroker.wire.stored import metadata as stored


def kept_as(record: Any) -> tuple[Any, bool]:
    """Under which key a record is kept, and whether it says that what is kept there is gone."""
    if isinstance(record, stored.AccessControlEntryRecord | stored.RemoveAccessControlEntryRecord):
        return ("acl", record.id), isinstance(record, stored.RemoveAccessControlEntryRecord)
    return ("token", record.token_id), isinstance(record, stored.RemoveDelegationTokenRecord)
