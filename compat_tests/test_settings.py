"""Tests of settings that contradict each other: Apache Kafka checks them at its start, and both brokers check every
change."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.conftest import Running
from oracle.tools import tool
from tests.config.test_contradictions import ANSWERS, FILE, given


def test_the_table_has_apache_kafkas_answers(tmp_path: Path) -> None:
    """kafka-storage has accepted the settings if it complains about the directories, which do not exist."""
    file = tmp_path / "server.properties"
    answers = []
    for _, line in ANSWERS:
        file.write_text("".join(f"{name}={value}\n" for name, value in {**FILE, **given(line)}.items()))
        ran = tool("kafka-storage", "info", "-c", str(file))
        answers.append(["taken" if "does not exist" in ran.out and "Exception" not in ran.err else "refused", line])
    assert answers == ANSWERS


@pytest.mark.parametrize(
    ("setting", "taken"),
    [
        ("log.retention.ms=0", False),
        ("log.roll.ms=0", False),
        ("log.roll.ms=1", True),
        ("log.roll.jitter.ms=-1", False),
        ("log.cleaner.dedupe.buffer.size=1048576", False),
        ("log.cleaner.dedupe.buffer.size=1048577", True),
        ("max.connections.per.ip=0", False),
        ("max.connections.per.ip=0,max.connections.per.ip.overrides=[localhost:100]", True),
        ("group.consumer.assignment.interval.ms=15000", True),
        ("group.consumer.assignment.interval.ms=15001", False),
        ("group.share.assignment.interval.ms=15001", False),
        ("group.streams.assignment.interval.ms=15001", False),
    ],
)
def test_changes_that_contradict_the_current_settings_are_refused(setting: str, taken: bool, broker: Running) -> None:
    alter = ("kafka-configs", "--alter", "--entity-type", "brokers", "--entity-default")
    ran = broker.tool(*alter, "--add-config", setting)
    assert (ran.code == 0) == taken, ran
    if taken:
        names = [part.partition("=")[0] for part in setting.split(",")]
        broker.tool(*alter, "--delete-config", ",".join(names)).ok()
