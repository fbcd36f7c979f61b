"""Registration, failure and return of brokers: epochs, fencing, and the leaders in the meantime."""

from __future__ import annotations

import pytest

from kpybroker.controller.commands import (
    AssignReplicas,
    BrokerHeartbeat,
    BrokerLost,
    CreateTopics,
    NewTopic,
    RegisterBroker,
)
from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.directory_ids import LOST, MIGRATING, UNASSIGNED
from kpybroker.wire.stored import metadata as stored
from tests.controller.stage import Stage

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))
FEATURES = tuple((name, *levels) for name, levels in SUPPORTED_FEATURES.items())


def with_topic(brokers: int) -> Stage:
    stage = Stage(brokers=brokers)
    replicas = tuple(range(1, brokers + 1))
    stage.ask(CreateTopics((NewTopic("t", assignments=((0, replicas),)),)))
    return stage


def test_a_brokers_epoch_is_the_offset_of_its_record() -> None:
    stage = Stage(brokers=3)
    offsets = {
        record.broker_id: offset
        for offset, record in enumerate(stage.records())
        if isinstance(record, stored.RegisterBrokerRecord)
    }
    assert stage.epochs == offsets
    assert {node_id: broker.epoch for node_id, broker in stage.state.brokers.items()} == offsets


def test_registering_the_same_incarnation_again_changes_nothing() -> None:
    stage = Stage(brokers=1)
    before, written = stage.epochs[1], len(stage.log)
    stage.join(1)
    assert (stage.epochs[1], len(stage.log)) == (before, written)


def test_a_lone_replica_keeps_leading_but_not_in_the_same_epoch_after_a_crash() -> None:
    stage = with_topic(brokers=1)
    stage.join(1, incarnation=2)
    partition = stage.partition()
    assert (partition.leader, partition.leader_epoch, partition.isr) == (1, 1, (1,))


def test_after_a_clean_shutdown_no_partition_records_are_written() -> None:
    stage = with_topic(brokers=1)
    state = stage.ask(BrokerHeartbeat(1, stage.epochs[1], want_shut_down=True))
    assert state.should_shut_down
    assert not stage.state.active(1)
    written = len(stage.log)
    stage.join(1, incarnation=2, previous_epoch=stage.epochs[1])
    assert len(stage.log) == written + 2
    partition = stage.partition()
    assert (partition.leader, partition.leader_epoch) == (1, 0)
    assert stage.state.active(1)


@pytest.mark.parametrize("how", ["fence", "stop", "crash"])
def test_leadership_moves_to_another_replica_in_sync(how: str) -> None:
    stage = with_topic(brokers=2)
    if how == "crash":
        stage.join(1, incarnation=2)
    else:
        stage.ask(BrokerHeartbeat(1, stage.epochs[1], want_fence=how == "fence", want_shut_down=how == "stop"))
    partition = stage.partition()
    assert (partition.leader, partition.leader_epoch, partition.isr) == (2, 1, (2,))
    assert stage.replayed() == stage.state


def test_fencing_and_unfencing_are_written_once() -> None:
    stage = Stage(brokers=2)
    written = len(stage.log)
    assert not stage.ask(BrokerHeartbeat(1, stage.epochs[1])).fenced
    assert stage.ask(BrokerHeartbeat(1, stage.epochs[1], want_fence=True)).fenced
    assert stage.ask(BrokerHeartbeat(1, stage.epochs[1], want_fence=True)).fenced
    assert len(stage.log) == written + 1


def test_no_replica_is_placed_on_a_broker_whose_directories_are_all_cordoned() -> None:
    """KIP-1066. The state of the directories is stored once, and survives in the Image."""
    stage = Stage(brokers=3)
    own = stage.state.brokers[2].log_dirs
    written = len(stage.log)
    for cordoned in ((), own, own):
        stage.ask(BrokerHeartbeat(2, stage.epochs[2], cordoned_log_dirs=cordoned))
    assert len(stage.log) == written + 1
    stage.ask(BrokerHeartbeat(2, stage.epochs[2]))
    assert stage.image().brokers[2].cordoned_log_dirs == own
    for number in range(8):
        stage.one(CreateTopics((NewTopic(f"t{number}", 3, 2),)))
    placed = {
        node for topic in stage.state.topics.values() for each in topic.partitions.values() for node in each.replicas
    }
    assert placed == {1, 3}
    code, text = stage.code(CreateTopics((NewTopic("wide", 1, 3),)))
    assert code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert text is not None
    assert "only 2 broker(s) are registered or some brokers have all" in text
    stage.ask(BrokerHeartbeat(2, stage.epochs[2], cordoned_log_dirs=()))
    stage.one(CreateTopics((NewTopic("wide", 1, 3),)))
    assert stage.replayed() == stage.state


def test_the_last_broker_is_not_fenced_at_its_request() -> None:
    stage = Stage(brokers=2)
    wishes = [BrokerHeartbeat(node_id, stage.epochs[node_id], want_fence=True) for node_id in (1, 2)]
    for _ in range(2):
        assert [stage.ask(wish).fenced for wish in wishes] == [True, False]


@pytest.mark.parametrize("node_id", [1, 9])
def test_a_stale_epoch_is_refused(node_id: int) -> None:
    stage = Stage(brokers=1)
    with pytest.raises(KafkaError) as refused:
        stage.ask(BrokerHeartbeat(node_id, 99))
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_broker_that_lacks_a_finalized_feature_is_refused() -> None:
    stage = Stage(brokers=0)
    stage.state.replay(stored.FeatureLevelRecord(name="metadata.version", feature_level=30))
    with pytest.raises(KafkaError) as refused:
        stage.ask(RegisterBroker(1, b"i" * 16, (), (("metadata.version", 7, 29),)))
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
    stage.join(1)


@pytest.mark.parametrize(
    "directory", [MIGRATING, UNASSIGNED, LOST, (99).to_bytes(16), bytes(8) + b"\xff" * 8], ids=bytes.hex
)
def test_no_directory_of_a_broker_has_a_reserved_id(directory: bytes) -> None:
    """Apache Kafka 4.3.1 refuses it with this text."""
    stage = Stage(brokers=0)
    wanted = RegisterBroker(1, b"i" * 16, (), FEATURES, log_dirs=(b"d" * 16, directory))
    with pytest.raises(KafkaError) as refused:
        stage.ask(wanted)
    assert refused.value.code is ErrorCode.INVALID_REGISTRATION
    assert refused.value.message == "Reserved directory ID in request"
    assert not stage.log


@pytest.mark.parametrize("directory", [(100).to_bytes(16), (1 << 64).to_bytes(16)], ids=bytes.hex)
def test_the_ids_after_the_reserved_ones_are_ordinary(directory: bytes) -> None:
    stage = Stage(brokers=0)
    stage.ask(RegisterBroker(1, b"i" * 16, (), FEATURES, log_dirs=(directory,)))
    assert stage.state.brokers[1].log_dirs == (directory,)


@pytest.mark.parametrize("directory", [MIGRATING, UNASSIGNED], ids=["migrating", "unassigned"])
@pytest.mark.parametrize(("left", "leads"), [((), False), ((A,), True)], ids=["no directory is left", "one is left"])
def test_a_replica_whose_directory_is_unknown_is_lost_with_the_last_directory(
    directory: bytes, left: tuple[bytes, ...], leads: bool
) -> None:
    """While one of the broker's directories is left, the replica may be in it."""
    stage = Stage(brokers=0)

    def register(incarnation: int, *log_dirs: bytes, previous_epoch: int = -1) -> None:
        again = RegisterBroker(
            1, bytes([incarnation]) * 16, (), FEATURES, log_dirs=log_dirs, previous_epoch=previous_epoch
        )
        stage.epochs[1] = stage.ask(again)
        stage.ask(BrokerHeartbeat(1, stage.epochs[1]))

    register(1, A, B)
    stage.ask(CreateTopics((NewTopic("t", assignments=((0, (1,)),)),)))
    topic_id = stage.state.topics["t"].topic_id
    stage.ask(AssignReplicas(1, stage.epochs[1], ((directory, topic_id, 0),)))
    before = stage.partition()
    assert (before.leader, before.directories) == (1, (directory,))
    stage.ask(BrokerLost(1, stage.epochs[1]))
    register(2, *left, C, previous_epoch=stage.epochs[1])
    now = stage.partition()
    if leads:
        assert now == before
    else:
        assert (now.leader, now.directories) == (-1, (C,)), "an empty log does not replace acknowledged records"
    assert stage.replayed() == stage.state
