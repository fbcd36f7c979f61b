"""Tests that the remembered settings of share groups follow the metadata, and are limited in number."""

from __future__ import annotations

from kpybroker.config import parse_config
from kpybroker.config.component import read_settings
from kpybroker.config.resource_type import ResourceType
from kpybroker.metadata.image import Image
from kpybroker.shares import settings
from kpybroker.shares.settings import LeaderSettings, RememberedRules, rules_of
from kpybroker.wire.stored import metadata as stored


def test_remembered_rules_follow_the_metadata() -> None:
    image = Image()
    own = read_settings(LeaderSettings, parse_config({}))
    rules = RememberedRules(lambda: image, own)
    seen = set()
    for value in ("20000", "25000", None):
        record = stored.ConfigRecord(
            resource_type=ResourceType.GROUP, resource_name="g", name="share.record.lock.duration.ms", value=value
        )
        image = image.apply([record], 1, 1)
        assert rules("g") == rules_of(image, own, "g")
        assert rules("g") is rules("g"), "not read again"
        seen.add(rules("g").limits.lock_ms)
    assert seen == {20_000, 25_000, own.share_record_lock_duration_ms}


def test_remembered_rules_are_limited() -> None:
    image = Image()
    rules = RememberedRules(lambda: image, read_settings(LeaderSettings, parse_config({})))
    first = rules("0")
    for number in range(settings.GROUPS_REMEMBERED):
        assert rules("0") is first
        rules(str(number))
    assert rules("0") is first
    rules("one more")
    assert rules("0") is not first
    assert rules("0") == first
