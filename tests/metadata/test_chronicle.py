"""Each change of a cluster is logged once, in few lines."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kpybroker.metadata import chronicle
from kpybroker.metadata.image import Image
from kpybroker.wire.stored import metadata as stored

TOPIC = bytes([7]) * 16
INCARNATION = bytes([9]) * 16


def registered(node_id: int, epoch: int) -> Any:
    return stored.RegisterBrokerRecord(
        broker_id=node_id, incarnation_id=INCARNATION, broker_epoch=epoch, end_points=[], features=[], fenced=True
    )


def changed(node_id: int, epoch: int, **facts: Any) -> Any:
    return stored.BrokerRegistrationChangeRecord(broker_id=node_id, broker_epoch=epoch, **facts)


def moved(index: int, **facts: Any) -> Any:
    return stored.PartitionChangeRecord(partition_id=index, topic_id=TOPIC, **facts)


class Told:
    """An Image that is updated, and the lines that node 1 logs about each update."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, chronicle.CHRONICLE)
        self._caplog = caplog
        partitions = [
            stored.PartitionRecord(
                partition_id=index, topic_id=TOPIC, replicas=[1, 2, 3], isr=[1, 2, 3], leader=1, directories=[]
            )
            for index in range(9)
        ]
        self._image = Image().apply([stored.TopicRecord(name="t", topic_id=TOPIC), *partitions], 10, 1)

    def of(self, *records: Any) -> list[str]:
        """Apply these changes, and return the lines about them."""
        old, self._image = self._image, self._image.apply(records, self._image.offset + len(records), 1)
        self._caplog.clear()
        chronicle.tell(old, self._image, 1)
        return [f"{record.levelname} {record.getMessage()}" for record in self._caplog.records]


def test_brokers_come_and_go(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog)
    assert told.of(registered(2, 20)) == ["INFO broker 2 is registered, epoch 20"]
    assert told.of(changed(2, 20, fenced=-1)) == ["INFO broker 2 is unfenced"]
    assert told.of(moved(0, isr=[2, 1, 3])) == []
    assert told.of(changed(2, 20, in_controlled_shutdown=1)) == ["INFO broker 2 stops (controlled shutdown)"]
    assert told.of(changed(2, 20, fenced=1)) == ["INFO broker 2 is fenced"]
    gone = stored.UnregisterBrokerRecord(broker_id=2, broker_epoch=20)
    assert told.of(gone) == ["INFO broker 2 is unregistered"]


def test_changes_of_in_sync_sets_are_logged_together_by_the_leader(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog)
    assert told.of(moved(0, isr=[1, 2])) == ["INFO ISRs shrink, 1: t-0: 1,2,3 to 1,2"]
    (line,) = told.of(*(moved(index, isr=[1]) for index in range(9)))
    assert line.startswith("INFO ISRs shrink, 9: t-0: 1,2 to 1; t-1: 1,2,3 to 1; ")
    assert line.endswith("; t-4: 1,2,3 to 1, ...")
    assert told.of(moved(3, isr=[1, 2])) == ["INFO ISRs grow, 1: t-3: 1 to 1,2"]
    assert told.of(moved(0, leader=2), moved(0, isr=[2])) == []


def test_an_unclean_election_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog)
    assert told.of(moved(0, isr=[2], leader=2), moved(0, isr=[1], leader=1, leader_recovery_state=1)) == [
        "WARNING unclean election: this broker leads 1 partitions, which may lack acknowledged records: t-0"
    ]


def test_the_first_image_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, chronicle.CHRONICLE)
    chronicle.tell(Image(), Image().apply([registered(1, 1)], 1, 1), 1)
    assert not caplog.records


def setting(kind: int, resource: str, name: str, value: str | None) -> Any:
    return stored.ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)


def test_settings_without_effect_are_logged_when_they_are_set(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(caplog)
    said = "WARNING settings without effect on this broker (see docs/configuration.md)"
    assert told.of(setting(2, "t", "preallocate", "true")) == [f"{said}, 1: preallocate of topic t"]
    assert told.of(setting(2, "t", "retention.ms", "5")) == []
    assert told.of(setting(2, "t", "preallocate", None)) == []
    assert told.of(setting(2, "t", "preallocate", "false")) == [], "the default"
    assert told.of(setting(4, "", "num.io.threads", "3")) == [f"{said}, 1: num.io.threads of broker default"]
    assert told.of(setting(4, "2", "num.io.threads", "3")) == [], "the other broker logs this"
    passed_over = "WARNING ignored settings of other software"
    assert told.of(setting(4, "1", "of.a.plug.in", "3")) == [f"{passed_over}, 1: of.a.plug.in of broker 1"]
    mapped = "WARNING settings kept by kpybroker.fsync=always: records are on disk before they are acknowledged"
    assert told.of(setting(2, "t", "flush.messages", "1")) == [f"{mapped}, 1: flush.messages of topic t"]
    assert told.of(setting(4, "", "log.flush.interval.ms", "5")) == [
        f"{mapped}, 1: log.flush.interval.ms of broker default"
    ]
    of_listener = setting(4, "1", "listener.name.plaintext.ssl.provider", "x")
    assert told.of(of_listener) == [f"{said}, 1: listener.name.plaintext.ssl.provider of broker 1"]
    assert told.of(setting(16, "m", "interval.ms", "1000")) == [f"{said}, 1: interval.ms of client metrics m"]
    assert told.of(setting(2, "u", "preallocate", "true"), setting(32, "g", "share.isolation.level", "x")) == [
        f"{said}, 1: preallocate of topic u"
    ], "DynamicConfigs logs invalid values"
    (line,) = told.of(*(setting(2, f"t{n}", "preallocate", "true") for n in range(9)))
    assert line.startswith(f"{said}, 9: preallocate of topic t0; ")
    assert line.endswith("t4, ...")


def test_settings_without_effect_in_the_file_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    chronicle.tell_start({"num.partitions": "3", "num.io.threads": "8"})
    assert caplog.records == []
    given = {
        "num.partitions": "3",
        "num.io.threads": "9",
        "log.preallocate": "true",
        "log.flush.interval.messages": "1",
        "confluent.license.topic.replication.factor": "1",
        "strimzi.x": "x",
    }
    chronicle.tell_start(given)
    mapped, idle, others = (record.getMessage() for record in caplog.records)
    assert "kpybroker.fsync=always" in mapped
    assert mapped.endswith(", 1: log.flush.interval.messages")
    assert idle.endswith(", 2: log.preallocate, num.io.threads")
    assert others == ("ignored settings of other software, 2: confluent.license.topic.replication.factor, strimzi.x")


def test_a_long_line_about_settings_in_the_file_is_truncated(caplog: pytest.LogCaptureFixture) -> None:
    most = chronicle.NAMED_AT_START_MAX
    chronicle.tell_start({f"confluent.{number:04}": "x" for number in range(most + 1)})
    (record,) = caplog.records
    assert record.getMessage().endswith(f"confluent.{most - 1:04}, ...")


def test_with_fsync_always_the_settings_that_it_replaces_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    chronicle.tell_start({"log.flush.interval.messages": "1", "kpybroker.fsync": "always"})
    assert caplog.records == []
