"""Requests that change data or metadata, repeated while the broker is busy, and the records and producer ids for
them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from compat_tests.visible import GROUP, TRANSACTION, Eyes, Place
from kpybroker.wire.records.batch import Record
from kpybroker.wire.rpc import create_topics, incremental_alter_configs, init_producer_id, offset_commit, produce

PATIENCE_S = 60.0
NO_LEADER, CONCURRENT_TRANSACTIONS = 3, 51
BUSY = {NO_LEADER, 6, 14, 15, 16, 41, CONCURRENT_TRANSACTIONS, 100}
"""Error codes of a broker that does not know, lead or serve the partition yet, or that is still writing markers."""
LONG_MS = 600_000
SET = 0


def until(holds: Callable[[], Any], what: str) -> Any:
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"timed out waiting until {what}"
        time.sleep(0.05)
    return found


def patiently(ask: Callable[[], int], *allowed: int) -> int:
    """Repeat a request while the broker is busy. Returns the error code, which must be one of `allowed` (only 0 if
    empty)."""
    deadline = time.monotonic() + PATIENCE_S
    while (code := ask()) in BUSY and code not in allowed:
        assert time.monotonic() < deadline, f"busy for too long: error {code}"
        time.sleep(0.05)
    assert code in (allowed or (0,)), f"error {code}"
    return code


class Source:
    """Makes distinct records with ascending timestamps, and keeps track of the producer ids that brokers have
    assigned."""

    def __init__(self, first_ms: int) -> None:
        self.now_ms = first_ms
        self._owners: dict[int, str | None] = {}

    def records(self, count: int, value: bytes = b"value", keys: int = 1 << 30) -> list[Record]:
        """`count` records, each a millisecond later than the one before; every fifth has no key, every fifth no
        value."""
        made = []
        for number in range(count):
            self.now_ms += 1
            key = None if number % 5 == 4 else b"key %d" % (number % keys)
            headers = (("h", b"%d" % number), ("null", None)) if number % 3 == 0 else ()
            content = None if number % 5 == 3 else value + b" %d" % self.now_ms
            made.append(Record(0, self.now_ms, key, content, headers))
        return made

    def check_new(self, producer_id: int, owner: str | None) -> None:
        """Check that the owner of a producer id (a transactional id, or a producer without such an id) never
        changes."""
        assert producer_id not in self._owners or self._owners[producer_id] == owner is not None, "given twice"
        self._owners[producer_id] = owner


def send(eyes: Eyes, place: Place, batch: bytes | bytearray, transactional_id: str | None = None, *allowed: int) -> int:
    """Produce with acks=all. Returns the offset, or an allowed error code as a negative number."""
    offset = -1

    def ask() -> int:
        nonlocal offset
        eyes.see()
        data = produce.PartitionProduceData(index=place[1], records=memoryview(bytearray(batch)))
        topic = produce.TopicProduceData(topic_id=eyes.ids[place[0]], partition_data=[data])
        request = produce.Request(transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topic_data=[topic])
        if eyes.rows[place].leader_id < 0:
            return NO_LEADER
        told = eyes.ask_leader(place, "Produce", request, produce.Response)
        row = told.responses[0].partition_responses[0]
        offset = row.base_offset
        return int(row.error_code)

    code = patiently(ask, *allowed)
    return -code if code else offset


def commit(
    eyes: Eyes, group: str, place: Place, offset: int, note: str = "", generation: int = -1, member: str = ""
) -> None:
    """Commit one offset, as a member of the group or without membership."""
    row = offset_commit.OffsetCommitRequestPartition(
        partition_index=place[1], committed_offset=offset, committed_leader_epoch=0, committed_metadata=note
    )
    topic = offset_commit.OffsetCommitRequestTopic(name=place[0], partitions=[row])
    request = offset_commit.Request(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=[topic]
    )

    def ask() -> int:
        told = eyes.ask("OffsetCommit", request, offset_commit.Response, coordinator(eyes, group), version=9)
        return int(told.topics[0].partitions[0].error_code)

    patiently(ask)


def coordinator(eyes: Eyes, key: str, kind: int = GROUP) -> int:
    """The coordinator, as soon as there is one; the first request makes the broker create the internal topic."""

    def ask() -> tuple[int] | None:
        try:
            return (eyes.coordinator(key, kind),)
        except LookupError:
            return None

    return int(until(ask, f"somebody coordinates {key}")[0])


def create(eyes: Eyes, name: str, partitions: int, replicas: int, configs: dict[str, str]) -> None:
    """CreateTopics; returns when the topic is known."""
    settings = [create_topics.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
    topic = create_topics.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replicas, configs=settings
    )
    told = eyes.ask("CreateTopics", create_topics.Request(topics=[topic]), create_topics.Response)
    assert told.topics[0].error_code == 0, told.topics[0].error_message
    topic_id = told.topics[0].topic_id
    until(lambda: eyes.see() or eyes.ids.get(name) == topic_id, f"{name} is known")


def alter(eyes: Eyes, kind: int, name: str, values: dict[str, str]) -> None:
    """Set values with IncrementalAlterConfigs."""
    configs = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=SET, value=value)
        for key, value in values.items()
    ]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = incremental_alter_configs.Request(resources=[resource])
    told = eyes.ask("IncrementalAlterConfigs", request, incremental_alter_configs.Response)
    assert told.responses[0].error_code == 0, told.responses[0].error_message


def new_producer(eyes: Eyes, source: Source, transactional_id: str | None, timeout_ms: int = LONG_MS) -> Any:
    """InitProducerId."""
    request = init_producer_id.Request(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    told = init_producer_id.Response()

    def ask() -> int:
        nonlocal told
        where = coordinator(eyes, transactional_id, TRANSACTION) if transactional_id is not None else None
        told = eyes.ask("InitProducerId", request, init_producer_id.Response, where)
        return int(told.error_code)

    patiently(ask)
    source.check_new(told.producer_id, transactional_id)
    return told
