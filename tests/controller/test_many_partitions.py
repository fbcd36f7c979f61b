"""The limits are consistent: a broker with the most partitions can be registered, fenced, lost and unregistered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kpybroker.controller.brokers import LEFT_AT_ONCE
from kpybroker.controller.commands import (
    BrokerHeartbeat,
    BrokerLost,
    Command,
    CreateTopics,
    NewTopic,
    RegisterBroker,
    UnregisterBroker,
)
from kpybroker.machine.contract import Moment, Outcome, Stored, Tick, Ticket
from kpybroker.raft.log.metadata_log import BATCH_LIMIT_BYTES, pieces
from kpybroker.wire.stored import metadata as stored
from tests.controller.stage import Stage
from tests.controller.test_sessions import SESSION_MS, beat

PARTITIONS = 100_000  # the default of kpybroker.max.partitions
A_TOPIC = 500
HEADER_BYTES, ROW_BYTES = 61, 20
"""The size of a batch header, and the largest size of a record without its content."""


def topics(stage: Stage, count: int, replicas: int) -> None:
    """Add this many partitions directly to the state, each with a replica on every broker."""
    nodes = list(range(1, replicas + 1))
    for number in range(count // A_TOPIC):
        topic_id = number.to_bytes(16)
        records: list[Any] = [stored.TopicRecord(name=f"t{number}", topic_id=topic_id)]
        for index in range(A_TOPIC):
            order = nodes[index % replicas :] + nodes[: index % replicas]
            directories = [stage.state.brokers[node_id].log_dirs[0] for node_id in order]
            records.append(
                stored.PartitionRecord(
                    partition_id=index,
                    topic_id=topic_id,
                    replicas=order,
                    isr=order,
                    leader=order[0],
                    directories=directories,
                )
            )
        for record in records:
            stage.machine.apply(Stored(None, None, message=record))


def decided(stage: Stage, command: Command | Tick) -> Outcome:
    """Decide on a command and apply its records, which fit into batches of the quorum's log."""
    outcome = stage.machine.decide(Ticket(1000), command, Moment(stage.now_ms, stage.now_ms))
    for record in outcome.records:
        record.value = stored.frame_record(record.message)
    for piece in pieces(outcome.records):
        assert HEADER_BYTES + sum(len(each.value or b"") + ROW_BYTES for each in piece) <= BATCH_LIMIT_BYTES
    for record in outcome.records:
        record.offset = len(stage.log)
        stage.log.append(record)
        stage.machine.apply(record)
    return outcome


def again(stage: Stage, node_id: int) -> RegisterBroker:
    """A registration with an empty directory, as after the replacement of a disk."""
    known = stage.state.brokers[node_id]
    return RegisterBroker(node_id, b"again".ljust(16), (), known.features, log_dirs=(b"new".ljust(16),))


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [3, 5])
def test_a_broker_with_the_most_partitions_can_be_written(replicas: int) -> None:
    stage = Stage(brokers=replicas)
    topics(stage, PARTITIONS, replicas)
    decided(stage, BrokerLost(1, stage.epochs[1]))
    registered = decided(stage, again(stage, 1))
    assert type(registered.records[0].message) is stored.BeginTransactionRecord
    assert type(registered.records[-1].message) is stored.EndTransactionRecord
    assert len(registered.records) == PARTITIONS + 3
    ((_, epoch),) = registered.answers
    assert epoch == stage.state.brokers[1].epoch
    assert all(1 not in each.isr for topic in stage.state.topics.values() for each in topic.partitions.values())
    lost = stage.state.brokers[2].log_dirs
    decided(stage, BrokerHeartbeat(2, stage.epochs[2], offline_log_dirs=lost))
    decided(stage, UnregisterBroker(3))
    assert all(
        each.leader not in (1, 2, 3) for topic in stage.state.topics.values() for each in topic.partitions.values()
    )


def steps(stage: Stage) -> Iterator[int]:
    """The number of records of each Tick, until no further Tick is due at once."""
    while stage.machine.deadline_ms() == 0:
        yield len(decided(stage, Tick()).records)


@pytest.mark.slow
@pytest.mark.parametrize("by_silence", [False, True])
def test_a_fencing_takes_several_steps_and_other_requests_run_between_them(by_silence: bool) -> None:
    stage = Stage(brokers=3)
    topics(stage, 3 * LEFT_AT_ONCE, 3)
    if by_silence:
        stage.now_ms += SESSION_MS - 1
        beat(stage, 2, 3)
        stage.now_ms += 1
    first = len(decided(stage, Tick() if by_silence else BrokerLost(1, stage.epochs[1], dead=True)).records)
    assert 0 < first <= LEFT_AT_ONCE
    assert not stage.state.brokers[1].fenced, "its partitions change before it is fenced"
    stage.now_ms += 700  # as if the step had taken this time
    beat(stage, 1, 2, 3)
    stage.ask(CreateTopics((NewTopic("meanwhile", assignments=((0, (1, 2, 3)),)),)))
    counts = [first, *steps(stage)]
    assert max(counts) <= LEFT_AT_ONCE
    assert sum(counts) == 3 * LEFT_AT_ONCE + 2
    assert [node_id for node_id, broker in stage.state.brokers.items() if broker.fenced] == [1]
    assert all(
        each.leader != 1 and 1 not in each.isr
        for topic in stage.state.topics.values()
        for each in topic.partitions.values()
    )


def test_two_brokers_lost_at_once_are_fenced_one_after_the_other() -> None:
    stage = Stage(brokers=3)
    topics(stage, 3 * LEFT_AT_ONCE, 3)
    for node_id in (1, 2, 1):
        stage.ask(BrokerLost(node_id, stage.epochs[node_id], dead=True))
    assert sum(steps(stage)) > 0
    assert [node_id for node_id, broker in stage.state.brokers.items() if broker.fenced] == [1, 2]
    assert all(each.leader == 3 for topic in stage.state.topics.values() for each in topic.partitions.values())


def test_a_fencing_ends_with_the_incarnation() -> None:
    stage = Stage(brokers=3)
    topics(stage, 3 * LEFT_AT_ONCE, 3)
    stage.ask(BrokerLost(1, stage.epochs[1], dead=True))
    decided(stage, again(stage, 1))
    assert list(steps(stage)) == [0]


def test_a_broker_that_is_being_fenced_does_not_count_as_live() -> None:
    """The last broker stays unfenced although its disk hangs: the other broker has ended, but is not completely fenced
    yet."""
    stage = Stage(brokers=2)
    topics(stage, 3 * LEFT_AT_ONCE, 2)
    decided(stage, BrokerLost(1, stage.epochs[1], dead=True))
    assert not stage.state.brokers[1].fenced
    decided(stage, BrokerHeartbeat(2, stage.epochs[2], want_fence=True))
    list(steps(stage))
    assert [node_id for node_id, broker in stage.state.brokers.items() if broker.fenced] == [1]
