"""The ACLs in the metadata (KIP-801), by id, and an index from ACL to id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kpybroker.metadata.part import Metadata, Part
from kpybroker.security.acls import Acl
from kpybroker.wire.stored import metadata as stored


def record_of(uuid: bytes, acl: Acl) -> stored.AccessControlEntryRecord:
    """The record that adds an ACL."""
    return stored.AccessControlEntryRecord(
        id=uuid,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _add(metadata: Metadata, record: stored.AccessControlEntryRecord) -> None:
    acl = Acl(
        record.resource_type,
        record.resource_name,
        record.pattern_type,
        record.principal,
        record.host,
        record.operation,
        record.permission_type,
    )
    if record.id in ACLS.of(metadata):
        _forget(metadata, record.id)
    metadata.changing(ACLS)[record.id] = acl
    metadata.changing(ACL_IDS)[acl] = record.id


def _remove(metadata: Metadata, record: stored.RemoveAccessControlEntryRecord) -> None:
    if record.id in ACLS.of(metadata):
        _forget(metadata, record.id)


def _forget(metadata: Metadata, uuid: bytes) -> None:
    acls, ids = metadata.changing(ACLS), metadata.changing(ACL_IDS)
    acl = acls.pop(uuid)
    if ids[acl] != uuid:
        return
    del ids[acl]
    if len(acls) > len(ids):  # the log contains equal ACLs with different ids, and some may be equal to this one
        for other_uuid, other in acls.items():
            if other == acl:
                ids[acl] = other_uuid


def _records(acls: Mapping[bytes, Acl]) -> Iterator[Any]:
    return (record_of(uuid, acl) for uuid, acl in acls.items())


ACLS: Part[Mapping[bytes, Acl]] = Part(
    "acls",
    {},
    {stored.AccessControlEntryRecord: _add, stored.RemoveAccessControlEntryRecord: _remove},
    _records,
)
"""ACLs by id, in the order in which they were added."""
ACL_IDS: Part[Mapping[Acl, bytes]] = Part("acl_ids", {}, {}, lambda _: ())
"""The index from ACL to id. If the log contains equal ACLs, which Apache Kafka does not write, this is the id of the
last one."""
