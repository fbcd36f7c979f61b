"""The SCRAM credentials in the metadata, by user and mechanism (KIP-554, KIP-900)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from kpybroker.metadata.part import Metadata, Part
from kpybroker.security.scram import ScramCredential
from kpybroker.wire.stored import metadata as stored

ScramCredentials = Mapping[str, Mapping[int, ScramCredential]]
"""User -> mechanism -> credential. The mechanism is Kafka's code, as records may have unknown codes."""
NO_CREDENTIALS: ScramCredentials = MappingProxyType({})


def record_of(user: str, mechanism: int, credential: ScramCredential) -> stored.UserScramCredentialRecord:
    """The record that sets a credential."""
    return stored.UserScramCredentialRecord(name=user, mechanism=mechanism, **credential._asdict())


def _change(
    metadata: Metadata, record: stored.UserScramCredentialRecord | stored.RemoveUserScramCredentialRecord
) -> None:
    credentials = metadata.changing(SCRAM_CREDENTIALS)
    of_user = dict(credentials.get(record.name, {}))
    if isinstance(record, stored.UserScramCredentialRecord):
        of_user[record.mechanism] = ScramCredential(
            record.salt, record.stored_key, record.server_key, record.iterations
        )
    else:
        of_user.pop(record.mechanism, None)
    if of_user:
        credentials[record.name] = of_user
    else:
        credentials.pop(record.name, None)


def _records(credentials: ScramCredentials) -> Iterator[Any]:
    return (
        record_of(user, mechanism, each) for user, of_user in credentials.items() for mechanism, each in of_user.items()
    )


SCRAM_CREDENTIALS: Part[ScramCredentials] = Part(
    "scram_credentials",
    NO_CREDENTIALS,
    {stored.UserScramCredentialRecord: _change, stored.RemoveUserScramCredentialRecord: _change},
    _records,
)
