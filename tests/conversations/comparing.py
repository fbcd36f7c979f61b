"""Compares, field by field, what kpybroker and Apache Kafka said; opens the records of the metadata log."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from kpybroker.wire.codec.codec import parse
from kpybroker.wire.codec.message import Structure
from kpybroker.wire.records.batch import Record, read_records, whole_batches
from kpybroker.wire.stored import quorum
from kpybroker.wire.stored.metadata import unframe_record

METADATA_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
LEADER_CHANGE = 2
"""The type of a control record."""
LISTS = (
    "features",
    "listeners",
    "finalized_features",
    "supported_features",
    "api_keys",
    "isr",
    "new_isr_with_epochs",
    "voters",
    "granting_voters",
)
"""Lists without an order."""
LOWEST = ("min_supported_version", "min_version")
"""The lowest metadata.version: 7 of Kafka, 30 of kpybroker."""
OFFSETS = (
    "fetch_offset",
    "high_watermark",
    "base_offset",
    "end_offset",
    "broker_epoch",
    "previous_broker_epoch",
    "finalized_features_epoch",
)
"""Fields with offsets of the metadata log."""
LAST = "current_metadata_offset"
"""The offset of the last record that a broker has applied."""
NEVER = 1_000_000
"""The offset of a record that our node does not write."""
METADATA_VERSION = "metadata.version"
IDS = ("incarnation_id",)
"""Fields with an id that each process draws."""


class Shifts:
    """Where our log of the metadata differs from Kafka's: `moved` has the offset of a batch of one record of Kafka's,
    and the offset at which our node writes it, or NEVER. Between the two, all other records have the offset before."""

    def __init__(self, moved: dict[int, int]) -> None:
        self._moved = moved

    def end(self, offset: int) -> int:
        """Our offset of a position in the log."""
        return offset - sum(source < offset <= target for source, target in self._moved.items())

    def of(self, fields: Any, name: str = "") -> Any:
        """Kafka's fields, with our offsets."""
        if isinstance(fields, dict):
            base = fields.get("base_offset")
            if base in self._moved:
                return {**fields, "base_offset": self._moved[base], "next_offset": self._moved[base] + 1}
            if base is not None:
                count = fields["next_offset"] - base
                fields = {**fields, "next_offset": -1}
                return {**self._each(fields), "next_offset": self.end(base) + count}
            return self._each(fields)
        if isinstance(fields, list):
            return [self.of(each, name) for each in fields if not self._is_missing(each)]
        if name == LAST and isinstance(fields, int):
            return self.end(fields + 1) - 1
        is_offset = name in OFFSETS and isinstance(fields, int) and 0 <= fields < NEVER
        return self.end(fields) if is_offset else fields

    def _each(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {key: self.of(value, key) for key, value in fields.items()}

    def _is_missing(self, fields: Any) -> bool:
        return isinstance(fields, dict) and self._moved.get(fields.get("base_offset", -1)) == NEVER


def records_in(data: Any) -> list[dict[str, Any]]:
    """The batches of the metadata log as plain values, without timestamps and checksums. The order of the records of a
    batch does not count."""
    found = []
    for batch in whole_batches(data):
        records: list[Any] = []
        for record in read_records(batch):
            value = record.value or b""
            records.append(_control(record) if batch.is_control else _opened(value))
        found.append(
            {
                "base_offset": batch.base_offset,
                "next_offset": batch.next_offset,
                "leader_epoch": batch.leader_epoch,
                "is_control": batch.is_control,
                "records": sorted(records, key=str),
            }
        )
    return found


def _control(record: Record) -> dict[str, Any]:
    """A control record: a change of the leader or of the voters."""
    _, kind = struct.unpack(">hh", record.key or b"")
    value = bytes(record.value or b"")
    if kind == LEADER_CHANGE:
        return {"kind": kind, **_fields(parse(quorum.LeaderChangeMessage, 0, value))}
    return {"kind": kind, "value": value.hex()}


def _opened(framed: Any) -> dict[str, Any]:
    record = unframe_record(framed)
    return {"record": type(record).__name__, **_fields(record)}


def _fields(value: Any) -> Any:
    if isinstance(value, Structure):
        names: tuple[str, ...] = tuple(type(value).__slots__)
        return {name: _fields(getattr(value, name)) for name in names}
    return [_fields(each) for each in value] if isinstance(value, list) else value


def differences(kafka: Any, ours: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, value of Kafka, our value) of each difference between two plain values. Records differ as a whole."""
    if path.endswith(".records"):
        if kafka != ours:
            yield path.lstrip("."), kafka, ours
    elif isinstance(kafka, dict) and isinstance(ours, dict):
        for name in {**kafka, **ours}:
            yield from differences(kafka.get(name, "missing"), ours.get(name, "missing"), f"{path}.{name}")
    elif isinstance(kafka, list) and isinstance(ours, list) and len(kafka) == len(ours):
        for at, (one, other) in enumerate(zip(kafka, ours, strict=True)):
            yield from differences(one, other, f"{path}[{at}]")
    elif kafka != ours:
        yield path.lstrip("."), kafka, ours


def with_records_opened(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a Fetch response, with the records of the metadata log as plain values."""
    for topic in fields["responses"]:
        for row in topic["partitions"]:
            if topic.get("topic_id") == METADATA_ID and isinstance(row["records"], bytes):
                row["records"] = records_in(row["records"])
    return fields


def ordered(fields: Any) -> Any:
    """The fields without what differs from one process to another."""
    if isinstance(fields, dict):
        dropped = (*IDS, *LOWEST) if fields.get("name") == METADATA_VERSION else IDS
        return {name: _sorted(name, ordered(value)) for name, value in fields.items() if name not in dropped}
    return [ordered(each) for each in fields] if isinstance(fields, list) else fields


def _sorted(name: str, value: Any) -> Any:
    return sorted(value, key=str) if name in LISTS and isinstance(value, list) else value
