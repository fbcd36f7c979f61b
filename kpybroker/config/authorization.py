"""Parses the settings of the authorizer: its class, super users, and the access to resources without ACLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kpybroker.config.security_keys import AUTHORIZER_KEYS, STANDARD_AUTHORIZER
from kpybroker.errors import ConfigError


def parse_authorization(class_name: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """The values of AUTHORIZER_KEYS. Raises ConfigError for other classes, and for super users that are not principals.

    `texts`: all settings.
    """
    if class_name not in ("", STANDARD_AUTHORIZER):
        raise ConfigError(
            f"authorizer.class.name={class_name} cannot be applied: Java classes are not run, and a node without its "
            f"authorizer would let every client do everything; use {STANDARD_AUTHORIZER}, whose rules are served here, "
            "or remove the setting"
        )
    values: dict[str, Any] = {
        key.attribute: key.parse(texts[key.name]) if key.name in texts else key.default_value
        for key in AUTHORIZER_KEYS.values()
    }
    values["super_users"] = _principals(str(values["super_users"] or ""))
    return values


def _principals(text: str) -> frozenset[str]:
    found = [principal for principal in (each.strip() for each in text.split(";")) if principal]
    for principal in found:
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise ConfigError(
                f"super.users: {principal!r} is not a principal; write type:name, separated by semicolons, such as "
                "User:alice;User:bob"
            )
    return frozenset(found)
