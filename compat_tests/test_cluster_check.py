"""Tests of `kpybroker cluster check`, above all on Apache Kafka, which it is made for."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.conftest import Running, start_target, wait_until_led
from kpybroker.wire.records.batch import Record, encode_batch
from tests.storage.old_messages import message

WAIT_S = 60
REFUSED = {
    "config.providers": "file",
    "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
}
"""Settings that Apache Kafka starts with, and kpybroker refuses."""


OLD_TOPICS = {"older": 1, "old": 7, "half": 1, "converted": 1}


def old_log(topic: str) -> bytes:
    """The log of a topic with messages of an old format, or with batches that Apache Kafka's compaction made of such
    messages: they have no leader epoch."""
    if topic in ("old", "older"):
        return b"".join(message(offset, int(topic == "old")) for offset in range(10))
    converted = b"".join(encode_batch([Record(0, 1000, b"k", b"v")], base_offset=offset) for offset in (2, 5, 6))
    if topic == "half":
        return converted + b"".join(message(offset, 1) for offset in range(7, 10))
    new = (encode_batch([Record(0, 1000, b"k", b"v")], base_offset=at, leader_epoch=0) for at in range(9, 20))
    return converted + b"".join(new)


@pytest.fixture(scope="module")
def checked(target_name: str) -> Iterator[Running]:
    settings = {"num.network.threads": "5", "log.cleaner.threads": "2"}
    broker = start_target(target_name, {**settings, **(REFUSED if target_name == "kafka" else {})})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    ahead = {"preallocate": "true", "retention.ms": "-1"}
    topics = [NewTopic("plain", 1, 1), NewTopic("ahead", 1, 1, config=ahead)]
    topics += [NewTopic(name, partitions, 1, config={"retention.ms": "-1"}) for name, partitions in OLD_TOPICS.items()]
    for created in admin.create_topics(topics).values():
        created.result(WAIT_S)
    for name, partitions in OLD_TOPICS.items():
        wait_until_led(admin, name, partitions)
    broker.stop()
    for name, partitions in OLD_TOPICS.items():
        for index in range(partitions):
            directory = broker.data / f"{name}-{index}"
            directory.mkdir(exist_ok=True)  # kpybroker makes it for the first record
            (directory / f"{0:020}.log").write_bytes(old_log(name))
    broker.restart()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for name, partitions in OLD_TOPICS.items():
        if target_name == "kafka" or name == "converted":
            wait_until_led(admin, name, partitions)
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
        settings = ["config.providers.file.class", "config.providers=file"]
        assert (told.returncode, prevented[:2]) == (1, settings)
        shown = check(checked.bootstrap)
        assert shown.returncode == 1
        assert "config.providers=file" in shown.stdout
    else:
        assert (told.returncode, prevented) == (0, [])


def test_old_message_formats_are_found(checked: Running, target_name: str) -> None:
    """Also after batches that compaction has converted. kpybroker itself does not serve such logs, as it says."""
    found = [each for each in json.loads(check(checked.bootstrap, "--json").stdout) if "message" in each["what"]]
    told = [(each["level"], each["where"], each["what"]) for each in found]
    if target_name == "kafka":
        assert told == [
            ("prevents", "partition older-0", "messages of format 0"),
            ("prevents", "partitions half-0, old-0, old-1, old-2, old-3 and 3 more", "messages of format 1"),
        ]
    else:
        where = "partitions half-0, old-0, old-1, old-2, old-3 and 4 more"
        assert told == [("unknown", where, "formats of its messages")]
        assert "KAFKA_STORAGE_ERROR" in found[0]["why"]
