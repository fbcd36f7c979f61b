"""Every setting that the controller accepts can be applied by every node, also after a restart. Tests all settings, and
all ways to set them.

Keys and ranges are taken from the tables, so that new settings are tested as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pytest

from kpybroker.config import BrokerConfig, parse_config
from kpybroker.config.effect import KEYS
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import (
    AlterClientQuotas,
    AlterConfigs,
    AlterOp,
    ChangeConfigs,
    Command,
    CreateTopics,
    DeleteTopics,
    FeatureUpdate,
    IncrementalAlterConfigs,
    NewTopic,
    QuotaChange,
    ReplaceConfigs,
    UpdateFeatures,
)
from kpybroker.controller.election_rules import Rules
from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.controller.quotas import KEYS_OF_ADDRESSES, KEYS_OF_CLIENTS
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.metadata.dynamic_configs import DynamicConfigs
from kpybroker.metadata.image import Image
from kpybroker.quotas.clients import ClientQuotas
from kpybroker.quotas.rate import LONGEST_MS
from kpybroker.wire.api import by_name
from tests.boundaries import values_of
from tests.controller.stage import Stage

pytestmark = pytest.mark.slow

RESOURCES = [
    (ResourceType.TOPIC, "t"),
    (ResourceType.BROKER, ""),
    (ResourceType.BROKER, "1"),
    (ResourceType.CLIENT_METRICS, "m"),
    (ResourceType.GROUP, "g"),
]
QUOTAS = (0.0, -1.0, 5e-324, 1e-9, 0.4, 0.5, 1.0, 1.5, 2.0**31 - 1, 2.0**63, 1e300, 1e308, float("inf"), float("nan"))
TOLD = {ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def values_in(config: BrokerConfig) -> dict[str, Any]:
    """Every setting in effect. The caches of a BrokerConfig are not compared."""
    return {field.name: getattr(config, field.name) for field in fields(config) if field.compare}


class Follower:
    """A node that follows the controller's log, and builds every typed view of the settings."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.image = Image()
        self.dynamic = DynamicConfigs(parse_config(), 1)
        self.quotas = ClientQuotas(self.dynamic.config, lambda: 1_000)
        self._seen = 0

    def follow(self) -> None:
        """Apply the new records in the log."""
        records = [record.message for record in self.stage.log[self._seen :]]
        self._seen = len(self.stage.log)
        before, self.image = self.image, self.image.apply(records, self._seen, 1)
        self.dynamic.follow(before, self.image, self.image.changes.configs)
        self.make_views()

    def make_views(self) -> None:
        GroupSettings.of(self.dynamic.config)
        rules = Rules(self.dynamic.config, self.stage.state)
        for topic in self.image.topics:
            self.dynamic.log_settings(self.image, topic, replayed=True)
            rules.min_isr(topic)
        self.quotas.follow(self.dynamic.quotas)
        assert self.dynamic.unusable_count == 0

    def restart(self) -> None:
        """Read the whole log again. The same settings must be in effect."""
        fresh = Follower(self.stage)
        fresh.follow()
        assert fresh.image == self.image
        assert values_in(fresh.dynamic.config) == values_in(self.dynamic.config)
        assert self.stage.replayed() == self.stage.state


def ways(kind: ResourceType, name: str, key: str, value: str) -> Iterable[Command]:
    """All requests that change a setting. The last one removes it."""
    yield IncrementalAlterConfigs((ChangeConfigs(kind, name, ((key, AlterOp.SET, value),)),))
    yield IncrementalAlterConfigs((ChangeConfigs(kind, name, ((key, AlterOp.APPEND, value),)),))
    yield AlterConfigs((ReplaceConfigs(kind, name, ((key, value),)),))
    if kind is ResourceType.TOPIC:
        yield CreateTopics((NewTopic("new", 1, 1, configs=((key, value),)),))
        yield DeleteTopics((("new", bytes(16)),))
    yield IncrementalAlterConfigs((ChangeConfigs(kind, name, ((key, AlterOp.DELETE, None),)),))


def taken_of(kind: ResourceType, name: str, keys: Iterable[str]) -> int:
    """Try all values of these keys, and return how many were accepted and applied."""
    stage = Stage()
    stage.ask(CreateTopics((NewTopic("t", 1, 1),)))
    follower = Follower(stage)
    taken = 0
    for key in keys:
        for value in values_of(KEYS[kind][key]):
            for command in ways(kind, name, key, value):
                code, _ = stage.code(command)
                assert code in TOLD, (key, value[:50], code)
                taken += code is ErrorCode.NONE
                follower.follow()
        follower.restart()
        assert not stage.state.config(kind, name), "the change can be reverted"
    return taken


@pytest.mark.parametrize(("kind", "name"), [each for each in RESOURCES if each[0] is not ResourceType.BROKER])
def test_accepted_values_can_be_applied(kind: ResourceType, name: str) -> None:
    assert taken_of(kind, name, KEYS[kind]) > 0


def test_accepted_broker_values_can_be_applied() -> None:
    """Tests settings that were once accepted by mistake, and one in twenty of all settings. The next test covers all
    settings."""
    found = ["log.flush.interval.ms", "log.cleaner.io.buffer.load.factor", "max.connections.per.ip.overrides"]
    assert taken_of(ResourceType.BROKER, "", [*found, *sorted(KEYS[ResourceType.BROKER])[::20]]) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [each for each in RESOURCES if each[0] is ResourceType.BROKER])
def test_all_accepted_broker_values_can_be_applied(kind: ResourceType, name: str) -> None:
    assert taken_of(kind, name, KEYS[kind]) > 0


@pytest.mark.parametrize("entity", ["user", "client-id", "ip"])
@pytest.mark.parametrize("name", [None, "127.0.0.1"])
def test_accepted_quotas_can_be_applied_and_charged(entity: str, name: str | None) -> None:
    stage = Stage()
    follower = Follower(stage)
    for key in KEYS_OF_ADDRESSES if entity == "ip" else KEYS_OF_CLIENTS:
        taken = []
        for value in QUOTAS:
            code, _ = stage.code(AlterClientQuotas((QuotaChange(((entity, name),), ((key, value),)),)))
            assert code in TOLD
            taken += [value] * (code is ErrorCode.NONE)
            follower.follow()
            waits_ms = [follower.quotas.charge(key, "127.0.0.1", 1e9), follower.quotas.connected("127.0.0.1")]
            for api in ("CreateTopics", "DeleteTopics"):
                for version in (0, 7):
                    with contextlib.suppress(KafkaError):
                        follower.quotas.mutations(by_name[api], version, "127.0.0.1").take(10**6)
                    waits_ms.append(follower.quotas.mutations(by_name[api], version, "127.0.0.1").wait_ms)
            assert all(0 <= wait_ms <= LONGEST_MS for wait_ms in waits_ms)
        follower.restart()
        assert 1.0 in taken
        assert stage.code(AlterClientQuotas((QuotaChange(((entity, name),), ((key, None),)),)))[0] is ErrorCode.NONE


def test_accepted_feature_levels_can_be_applied() -> None:
    stage = Stage()
    follower = Follower(stage)
    for name in (*SUPPORTED_FEATURES, "unknown"):
        for level in (-(1 << 15), -1, 0, 1, 2, 3, 30, 31, (1 << 15) - 1):
            for upgrade_type in (0, 1, 2, 3, 4):
                with contextlib.suppress(KafkaError):
                    stage.ask(UpdateFeatures((FeatureUpdate(name, level, upgrade_type),)))
                follower.follow()
    follower.restart()
