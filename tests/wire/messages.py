"""Lists every declared message, by the name of Kafka's schema."""

from __future__ import annotations

import importlib
import re
from typing import Any

from kpybroker.wire.api import API

STORED = {
    "metadata": r"\w+Record",
    "quorum": r"\w+(Record|Message|Data)",
    "transaction": r"TransactionLog\w+|EndTxnMarker",
    "group": r"\w+(Key|Value)",
    "consumer_group": r"\w+(Key|Value)",
    "share_group": r"\w+(Key|Value)",
    "share_state": r"\w+(Key|Value)",
    "streams_group": r"\w+(Key|Value)",
}
"""The modules in wire/stored, and the schemas of the messages in each."""


def _stored() -> dict[str, Any]:
    found = {}
    for room, names in STORED.items():
        module = importlib.import_module(f"kpybroker.wire.stored.{room}")
        for name, value in vars(module).items():
            if isinstance(value, type) and hasattr(value, "lowered_parsers") and re.fullmatch(names, name):
                found[name] = value
    return found


MESSAGES: dict[str, Any] = {f"{api.name}Request": api.request for api in API}
MESSAGES |= {f"{api.name}Response": api.response for api in API}
MESSAGES |= _stored()


def versions(cls: Any) -> range:
    """The versions in which a message exists."""
    first, _, last = cls._versions.partition("-")
    return range(int(first), int(last or first) + 1)


VERSIONS = [(name, version) for name, cls in MESSAGES.items() for version in versions(cls)]
"""The (schema name, version) of every message and version that can be parsed and built."""
