"""The delegation tokens in the metadata, by id (KIP-900). The metadata does not contain their HMACs: each node computes
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kpybroker.metadata.part import Metadata, Part
from kpybroker.security.delegation_tokens import DelegationToken
from kpybroker.wire.stored import metadata as stored


def record_of(token: DelegationToken) -> stored.DelegationTokenRecord:
    """The record that adds or changes a token."""
    return stored.DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=list(token.renewers),
        issue_timestamp=token.issued_ms,
        max_timestamp=token.max_ms,
        expiration_timestamp=token.expires_ms,
        token_id=token.token_id,
    )


def _put(metadata: Metadata, record: stored.DelegationTokenRecord) -> None:
    metadata.changing(DELEGATION_TOKENS)[record.token_id] = DelegationToken(
        record.token_id,
        record.owner,
        record.requester,
        tuple(record.renewers),
        record.issue_timestamp,
        record.max_timestamp,
        record.expiration_timestamp,
    )


def _remove(metadata: Metadata, record: stored.RemoveDelegationTokenRecord) -> None:
    metadata.changing(DELEGATION_TOKENS).pop(record.token_id, None)


def _records(tokens: Mapping[str, DelegationToken]) -> Iterator[Any]:
    return map(record_of, tokens.values())


DELEGATION_TOKENS: Part[Mapping[str, DelegationToken]] = Part(
    "delegation_tokens",
    {},
    {stored.DelegationTokenRecord: _put, stored.RemoveDelegationTokenRecord: _remove},
    _records,
)
