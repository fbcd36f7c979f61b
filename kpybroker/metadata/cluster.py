"""Feature levels (KIP-584), settings (KIP-226) and the next producer id (KIP-730)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kpybroker.metadata import retirements, views
from kpybroker.metadata.own_settings import STORED_IN
from kpybroker.metadata.part import Metadata, Part
from kpybroker.wire.stored import metadata as stored

METADATA_VERSION = "metadata.version"

Resource = tuple[int, str]
"""Type and name."""


def _feature(metadata: Metadata, record: stored.FeatureLevelRecord) -> None:
    if record.feature_level:
        metadata.changing(FEATURES)[record.name] = record.feature_level
    else:
        metadata.changing(FEATURES).pop(record.name, None)


def _feature_records(features: Mapping[str, int]) -> Iterator[Any]:
    """The records of all feature levels. metadata.version is the first, because it determines how the other records are
    read (KIP-630)."""
    names = [METADATA_VERSION] if METADATA_VERSION in features else []
    for name in names + [n for n in features if n != METADATA_VERSION]:
        yield stored.FeatureLevelRecord(name=name, feature_level=features[name])


def _setting(metadata: Metadata, record: stored.ConfigRecord) -> None:
    resource = (record.resource_type, record.resource_name)
    configs = metadata.changing(CONFIGS)
    settings = dict(configs.get(resource, {}))
    if record.value is None:
        settings.pop(record.name, None)
    else:
        settings[record.name] = record.value
    if settings:
        configs[resource] = settings
    else:
        configs.pop(resource, None)
    if resource == STORED_IN:
        views.follow_setting(metadata, record.name, record.value)
        retirements.follow_setting(metadata, record.name, record.value)
    metadata.settings_changed(resource)


def forget_settings(metadata: Metadata, resource: Resource) -> None:
    """Remove all settings of a deleted resource."""
    if resource in CONFIGS.of(metadata):
        del metadata.changing(CONFIGS)[resource]
        metadata.settings_changed(resource)


def _setting_records(configs: Mapping[Resource, Mapping[str, str]]) -> Iterator[Any]:
    for (kind, name), settings in configs.items():
        for key, value in settings.items():
            yield stored.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)


def _producer_ids(metadata: Metadata, record: stored.ProducerIdsRecord) -> None:
    metadata.put(NEXT_PRODUCER_ID, record.next_producer_id)


def _producer_id_records(next_producer_id: int) -> Iterator[Any]:
    if next_producer_id:
        yield stored.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=next_producer_id)


FEATURES: Part[Mapping[str, int]] = Part("features", {}, {stored.FeatureLevelRecord: _feature}, _feature_records)
CONFIGS: Part[Mapping[Resource, Mapping[str, str]]] = Part(
    "configs", {}, {stored.ConfigRecord: _setting}, _setting_records
)
NEXT_PRODUCER_ID: Part[int] = Part(
    "next_producer_id", 0, {stored.ProducerIdsRecord: _producer_ids}, _producer_id_records
)
