"""Decides UpdateFeatures: a new finalized level must be in the range that all registered nodes support (KIP-584,
KIP-778)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import FeatureUpdate, UpdateFeatures, UpgradeType
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import ELR_FEATURE, GROUP_FEATURE, SHARE_FEATURE, STREAMS_FEATURE, TRANSACTION_FEATURE
from kpybroker.wire.stored import metadata as stored

SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "metadata.version": (30, 30),
        "kraft.version": (0, 1),
        ELR_FEATURE: (0, 1),
        GROUP_FEATURE: (0, 1),
        SHARE_FEATURE: (0, 1),
        STREAMS_FEATURE: (0, 1),
        TRANSACTION_FEATURE: (0, 2),
    }
)
"""The range of levels of each feature that this version of kpybroker supports."""
UNSTABLE_FEATURES: Mapping[str, tuple[int, int]] = MappingProxyType({SHARE_FEATURE: (0, 2)})
"""The ranges with unstable.feature.versions.enable, of features that have levels beyond those of Apache Kafka 4.3.

Level 2 of share.version is dead letters (KIP-1191); see docs/decisions/0022."""
OF_THE_QUORUM = "kraft.version"
"""The level of this feature is in control records of the log, not in FeatureLevelRecords: `raft.duties.voter_changes`
writes them."""
MIN_ISR = "min.insync.replicas"


def supported_features(config: BrokerConfig) -> Mapping[str, tuple[int, int]]:
    """The range of levels of each feature that a node with these settings supports."""
    unstable = UNSTABLE_FEATURES if config.unstable_feature_versions_enable else {}
    return {**SUPPORTED_FEATURES, **unstable}


def update_features(state: ControllerState, config: BrokerConfig, command: UpdateFeatures) -> tuple[list[Any], None]:
    """Decide on all updates together. Raises INVALID_UPDATE_VERSION or INVALID_REQUEST."""
    twice = [name for name, times in Counter(update.name for update in command.updates).items() if times > 1]
    if twice:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The feature {twice[0]} is named twice.")
    records: list[Any] = []
    supported = supported_features(config)
    for update in command.updates:
        now = state.features.get(update.name, 0)
        _check(state, supported, update, now)
        if update.level == now or update.name == OF_THE_QUORUM:
            continue
        records.append(stored.FeatureLevelRecord(name=update.name, feature_level=update.level))
        if update.name == ELR_FEATURE:
            records += _switch_elr(state, config, update.level)
    return ([] if command.validate_only else records), None


def _check(state: ControllerState, supported: Mapping[str, tuple[int, int]], update: FeatureUpdate, now: int) -> None:
    name, level = update.name, update.level
    if update.upgrade_type not in tuple(UpgradeType):
        raise _refused(update, f"the upgrade type {update.upgrade_type} is not known.")
    if name == OF_THE_QUORUM:
        return  # the quorum has already checked it
    low, high = supported.get(name, (0, 0))
    if name not in supported:
        raise _refused(update, "the controller does not support this feature.")
    if not low <= level <= high:
        raise _refused(update, f"the controller supports versions {low} to {high}.")
    if level < now and update.upgrade_type == UpgradeType.UPGRADE:
        raise _refused(update, "a lower version needs the upgrade type to be set to either safe or unsafe downgrade.")
    if level > now and update.upgrade_type != UpgradeType.UPGRADE:
        raise _refused(update, "a higher version cannot be a downgrade.")
    for node, features in _registered(state):
        lowest, highest = features.get(name, (0, 0))
        if not lowest <= level <= highest:
            raise _refused(update, f"{node} supports versions {lowest} to {highest}.")


def _registered(state: ControllerState) -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
    """Every registered node, and the range of levels that it supports of each feature."""
    for node_id, broker in state.brokers.items():
        yield f"broker {node_id}", {name: (low, high) for name, low, high in broker.features}
    for node_id, controller in state.controllers.items():
        levels = {each.name: (each.min_supported_version, each.max_supported_version) for each in controller.features}
        yield f"controller {node_id}", levels


def _switch_elr(state: ControllerState, config: BrokerConfig, level: int) -> list[Any]:
    """The records that switch eligible leader replicas on or off. When they are on, elections depend on
    min.insync.replicas, which must be the same on all nodes."""
    if not level:
        return [stored.ClearElrRecord()]
    records: list[Any] = []
    if MIN_ISR not in state.config(ResourceType.BROKER, ""):
        value = config.text(MIN_ISR)
        records.append(
            stored.ConfigRecord(resource_type=ResourceType.BROKER, resource_name="", name=MIN_ISR, value=value)
        )
    for (kind, name), settings in state.configs.items():
        if kind == ResourceType.BROKER and name and MIN_ISR in settings:
            records.append(stored.ConfigRecord(resource_type=kind, resource_name=name, name=MIN_ISR, value=None))
    return records


def _refused(update: FeatureUpdate, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {update.level} for feature {update.name}: {why}"
    )
