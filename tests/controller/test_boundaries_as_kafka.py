"""Changes of settings and quotas at their limits are accepted or refused as by Apache Kafka 4.3.1, with listed
exceptions.

`tests/config/boundaries-4.3.1.tsv` contains Kafka's responses to the requests of `oracle/boundaries.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kpybroker.controller.commands import (
    AlterClientQuotas,
    AlterOp,
    ChangeConfigs,
    CreateTopics,
    IncrementalAlterConfigs,
    NewTopic,
    QuotaChange,
)
from oracle.boundaries import NAMES
from tests.controller.stage import Stage

pytestmark = pytest.mark.slow

ANSWERS = (Path(__file__).parent.parent / "config" / "boundaries-4.3.1.tsv").read_text().splitlines()
ARABIC_ONE = "\u0661"
CLASSES, POOLS = {"metric.reporters"}, {"log.cleaner.threads", "remote.log.reader.threads"}
REFUSED_ON_PURPOSE = {
    "config.providers": "kpybroker would use the values literally",
    "log.flush.interval.ms": "Kafka stores negative values, but does not apply them and keeps the previous value",
    "log.cleaner.io.buffer.load.factor": "Kafka's cleaner could not put any key into its map",
    "log.cleaner.io.max.bytes.per.second": "at 0, Kafka's cleaner sleeps for ever; the other values set no limit",
    "max.connections": "one connection is not enough for Kafka's tools",
    "max.connections.per.ip": "one connection is not enough for Kafka's tools",
    "max.connections.per.ip.overrides": "a client must not lock itself out",
    "connection_creation_rate": "no client can connect with a rate that is rounded to 0",
    "follower.replication.throttled.replicas": "a list with only commas",
    "leader.replication.throttled.replicas": "a list with only commas",
}


def is_on_purpose(name: str, value: object, kafkas: int, ours: int) -> bool:
    if value == ARABIC_ONE and name not in CLASSES:
        return ours != 0  # kpybroker accepts only the digits 0 to 9 in numbers
    if isinstance(value, float) and value != value:
        return ours != 0  # Kafka stores NaN as a quota that no rate exceeds
    if ours:
        return kafkas == 0 and name in REFUSED_ON_PURPOSE
    # kpybroker does not load classes, and has no thread pools that are resized in steps.
    return (
        name in CLASSES | POOLS or name.endswith("thread.pool.size") or (value == "," and name in ("match", "metrics"))
    )


@pytest.mark.parametrize("part", range(4))
def test_changes_are_accepted_and_refused_as_in_kafka(part: int) -> None:
    stage = Stage()
    stage.ask(CreateTopics((NewTopic("t", 1, 1),)))
    for line in ANSWERS[part::4]:
        kind, name, text, code = line.split("\t")
        value = json.loads(text)
        if kind.isdigit():
            change = ChangeConfigs(int(kind), NAMES[int(kind)], ((name, AlterOp.SET, value),))
            ours, said = stage.code(IncrementalAlterConfigs((change,), validate_only=True, host="127.0.0.1"))
        else:
            quota = QuotaChange(((kind, None),), ((name, value),))
            ours, said = stage.code(AlterClientQuotas((quota,), validate_only=True))
        assert ours == int(code) or is_on_purpose(name, value, int(code), ours), (line, ours, said)
