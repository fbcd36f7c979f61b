"""Metadata records that nothing here uses, but that must survive a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kpybroker.metadata.part import Metadata, Part
from kpybroker.wire.stored import metadata as stored


def _key_of(record: Any) -> tuple[str, Any]:
    return "token", record.token_id


def _keep(metadata: Metadata, record: Any) -> None:
    metadata.changing(KEPT)[_key_of(record)] = record


def _forget(metadata: Metadata, record: Any) -> None:
    metadata.changing(KEPT).pop(_key_of(record), None)


KEPT: Part[Mapping[tuple[str, Any], Any]] = Part(
    "kept",
    {},
    {
        stored.DelegationTokenRecord: _keep,
        stored.RemoveDelegationTokenRecord: _forget,
    },
    lambda kept: kept.values(),
)
