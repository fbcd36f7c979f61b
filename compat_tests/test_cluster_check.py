"""Tests of `kpybroker cluster check`, above all on Apache Kafka, which it is made for."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.conftest import Running, start_target

WAIT_S = 60
REFUSED = {
    "config.providers": "file",
    "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
}
"""Settings that Apache Kafka starts with, and kpybroker refuses."""


@pytest.fixture(scope="module")
def checked(target_name: str) -> Iterator[Running]:
    settings = {"num.network.threads": "5", "log.cleaner.threads": "2"}
    broker = start_target(target_name, {**settings, **(REFUSED if target_name == "kafka" else {})})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic("plain", 1, 1), NewTopic("ahead", 1, 1, config={"preallocate": "true", "retention.ms": "-1"})]
    for created in admin.create_topics(topics).values():
        created.result(WAIT_S)
    yield broker
    broker.stop()
    broker.remove()


def check(bootstrap: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kpybroker", "cluster", "check", "--bootstrap", bootstrap, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)


def test_a_cluster_is_checked_before_a_move(checked: Running, target_name: str) -> None:
    """What has no effect here is named. Of Apache Kafka, a setting that needs a Java class prevents the move."""
    told = check(checked.bootstrap, "--json")
    found: list[dict[str, Any]] = json.loads(told.stdout)
    ignored = {each["what"]: each["where"] for each in found if each["level"] == "ignored"}
    assert ignored["num.network.threads=5"] == ignored["log.cleaner.threads=2"] == "broker 1"
    assert ignored["preallocate=true"] == "topic ahead"
    prevented = [each["what"] for each in found if each["level"] == "prevents"]
    if target_name == "kafka":
        assert (told.returncode, prevented) == (1, ["config.providers.file.class", "config.providers=file"])
        shown = check(checked.bootstrap)
        assert shown.returncode == 1
        assert "config.providers=file" in shown.stdout
    else:
        assert (told.returncode, prevented) == (0, [])
