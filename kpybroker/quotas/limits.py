"""Finds the quota that applies to a client: entities, and the order in which they are tried (KIP-55, KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kpybroker.metadata.quotas import CLIENT_ID, IP, USER, Entity

ANONYMOUS = "ANONYMOUS"
"""The user of a client that has not authenticated. On listeners without authentication, all clients have it."""

Limits = Mapping[Entity, float]
"""The quotas of one kind, by entity."""


class Applying(NamedTuple):
    """A limit and its scope: a user, one user's clients with one id, or all clients with one id."""

    limit: float
    user: str
    client_id: str


def applying(limits: Limits, user: str, client_id: str) -> Applying | None:
    """The limit for a client, or None. A user's own quota takes precedence over the default quota, a quota for user and
    client id over a quota for the user, and quotas of users over those of client ids."""
    for named in (user, None):
        for entity in (((CLIENT_ID, client_id), (USER, named)), ((CLIENT_ID, None), (USER, named))):
            if entity in limits:
                return Applying(limits[entity], user, client_id)
        if ((USER, named),) in limits:
            return Applying(limits[((USER, named),)], user, "")
    for entity_of_client in (((CLIENT_ID, client_id),), ((CLIENT_ID, None),)):
        if entity_of_client in limits:
            return Applying(limits[entity_of_client], "", client_id)
    return None


def of_address(limits: Limits, host: str) -> float | None:
    """The limit on the connections of an address: its own quota, or the default quota."""
    own = limits.get(((IP, host),))
    return limits.get(((IP, None),)) if own is None else own
