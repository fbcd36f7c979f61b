"""Records of `__cluster_metadata` that say again what an Image holds, for snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kpybroker.wire.stored import metadata as stored

if TYPE_CHECKING:
    from kpybroker.metadata.image import BrokerImage, PartitionImage


def kept_as(record: Any) -> tuple[Any, bool]:
    """Under which key a record is kept, and whether it says that what is kept there is gone."""
    if isinstance(record, stored.ClientQuotaRecord):
        entity = tuple((e.entity_type, e.entity_name) for e in record.entity)
        return ("quota", entity, record.key), record.remove
    if isinstance(record, stored.AccessControlEntryRecord | stored.RemoveAccessControlEntryRecord):
        return ("acl", record.id), isinstance(record, stored.RemoveAccessControlEntryRecord)
    if isinstance(record, stored.UserScramCredentialRecord | stored.RemoveUserScramCredentialRecord):
        return ("scram", record.name, record.mechanism), isinstance(record, stored.RemoveUserScramCredentialRecord)
    return ("token", record.token_id), isinstance(record, stored.RemoveDelegationTokenRecord)
