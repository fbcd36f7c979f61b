"""Runs the code blocks of docs/archive.md in order, with a temporary folder instead of /data/history."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kpybroker.testing import Broker
from tests import pages

NOON_MS = int(datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp() * 1000)
TOPICS = ("orders", "payments")


@pytest.mark.timeout(600)
@pytest.mark.full  # test_archive.py tests the commands themselves
def test_the_page_works(tmp_path: Path, target_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if target_name != "kpybroker":
        # the test starts its own kpybroker, because the page uses fixed topic names; it does not use the target
        return
    with Broker() as broker:
        new = [NewTopic(topic, num_partitions=4, config={"retention.ms": "-1"}) for topic in TOPICS]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for created in admin.create_topics(new).values():
            created.result(10)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for topic in TOPICS:
            producer.produce(topic, b"1", timestamp=NOON_MS)
        assert producer.flush(10) == 0
        monkeypatch.setenv("KPYBROKER_BOOTSTRAP", broker.bootstrap)
        pages.run("docs/archive.md", tmp_path, {"/data/history": str(tmp_path / "history")}, wait_s=550)
    assert list((tmp_path / "history").rglob("*.parquet"))
