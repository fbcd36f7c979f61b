"""The settings of delegation tokens (KIP-48)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class TokenSettings(NamedTuple):
    """`secret_key` must be the same on all nodes; None if there are no delegation tokens. It is never logged."""

    secret_key: str | None
    max_lifetime_ms: int
    """A token cannot be renewed beyond this age."""
    expiry_time_ms: int
    """A token that is not renewed for this time expires."""
    expiry_check_interval_ms: int
    """How often the controller removes expired tokens."""

    def __repr__(self) -> str:
        return f"TokenSettings({'enabled' if self.secret_key else 'disabled'})"


def token_settings(values: Mapping[str, Any]) -> TokenSettings:
    """The token settings among all settings. An empty key means that there is none, as in Apache Kafka."""
    return TokenSettings(
        values["delegation_token_secret_key"] or None,
        values["delegation_token_max_lifetime_ms"],
        values["delegation_token_expiry_time_ms"],
        values["delegation_token_expiry_check_interval_ms"],
    )
