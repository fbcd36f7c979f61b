"""SCRAM credentials as the metadata has them, by user and mechanism (KIP-554, KIP-900)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kpybroker.security.scram import ScramCredential
from kpybroker.wire.stored import metadata as stored

ScramCredentials = Mapping[str, Mapping[int, ScramCredential]]
"""By user the credentials of each mechanism, which is Kafka's code: records may have one that is not known here."""
NO_CREDENTIALS: ScramCredentials = MappingProxyType({})


def record_of(user: str, mechanism: int, credential: ScramCredential) -> stored.UserScramCredentialRecord:
    """The record that sets a credential."""
    return stored.UserScramCredentialRecord(name=user, mechanism=mechanism, **credential._asdict())


def changed(
    credentials: dict[str, Any], record: stored.UserScramCredentialRecord | stored.RemoveUserScramCredentialRecord
) -> None:
    """Take a record into a mapping of its own; the mappings in it are left as they are."""
    rest = dict(credentials.get(record.name, {}))
    if isinstance(record, stored.UserScramCredentialRecord):
        rest[record.mechanism] = ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
    else:
        rest.pop(record.mechanism, None)
    if rest:
        credentials[record.name] = rest
    else:
        credentials.pop(record.name, None)
