"""Decides AssignReplicasToDirs, and handles the loss of a directory of a running broker (KIP-858)."""

from __future__ import annotations

from typing import Any

from kpybroker.controller.commands import AssignReplicas
from kpybroker.controller.directories import directory_in, is_online
from kpybroker.controller.election_rules import Rules
from kpybroker.controller.leadership import Election, PartitionChange, Wanted
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.brokers import BrokerImage
from kpybroker.metadata.topics import PartitionImage
from kpybroker.wire.directory_ids import LOST, MIGRATING
from kpybroker.wire.stored import metadata as stored


def assign_replicas(
    state: ControllerState, rules: Rules, command: AssignReplicas
) -> tuple[list[Any], list[tuple[bytes, bytes, int, ErrorCode]]]:
    """Decide on each assignment separately. Raises STALE_BROKER_EPOCH."""
    broker = state.brokers.get(command.node_id)
    if broker is None or broker.epoch != command.broker_epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)
    records: dict[tuple[bytes, int], Any] = {}
    results = []
    for directory, topic_id, index in command.assignments:
        code = ErrorCode.NONE
        try:
            if (topic_id, index) in records:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            record = _assign(state, rules, command.node_id, broker, directory, topic_id, index)
            if record is not None:
                records[topic_id, index] = record
        except KafkaError as refusal:
            code = refusal.code
        results.append((directory, topic_id, index, code))
    return list(records.values()), results


def _assign(
    state: ControllerState,
    rules: Rules,
    node_id: int,
    broker: BrokerImage,
    directory: bytes,
    topic_id: bytes,
    index: int,
) -> Any | None:
    name = state.names.get(topic_id)
    if name is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    topic = state.topics[name]
    partition = topic.partitions.get(index)
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if node_id not in partition.replicas:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    wanted = Wanted(directories=_with(partition, node_id, directory), election=_election(rules, name))
    if not is_online(broker, directory):
        others = tuple(other for other in partition.isr if other != node_id)
        # a replica in a lost directory starts again with an empty log, which must not count as having the acknowledged
        # records; an offline directory may return with its logs
        wanted = wanted._replace(isr=others, lost_its_log=node_id if directory == LOST else None)
    return PartitionChange(state, rules, topic, state.active).record(index, wanted)


def _with(partition: PartitionImage, node_id: int, directory: bytes) -> tuple[bytes, ...] | None:
    """The partition's directories after a change of this replica's directory; None if nothing changes."""
    if directory_in(partition, node_id) == directory:
        return None
    count, place = len(partition.replicas), partition.replicas.index(node_id)
    before = (*partition.directories, *(MIGRATING,) * count)[:count]
    return (*before[:place], directory, *before[place + 1 :])


def lose_directories(state: ControllerState, rules: Rules, node_id: int, offline: tuple[bytes, ...]) -> list[Any]:
    """Move leaderships away from directories that a running broker has lost, if other brokers can take them over."""
    broker = state.brokers[node_id]
    gone = frozenset(offline) & frozenset(broker.log_dirs)
    if not gone:
        return []
    records: list[Any] = []
    left = [directory for directory in broker.log_dirs if directory not in gone]
    if left:  # a broker without directories stops, and an empty list in the record would mean no change
        records.append(
            stored.BrokerRegistrationChangeRecord(broker_id=node_id, broker_epoch=broker.epoch, log_dirs=left)
        )
    for topic in state.topics.values():
        change = PartitionChange(state, rules, topic, lambda other: other != node_id and state.active(other))
        for index, partition in topic.partitions.items():
            is_in_use = node_id in partition.isr or node_id == partition.leader
            if is_in_use and directory_in(partition, node_id) in gone:
                isr = tuple(other for other in partition.isr if other != node_id)
                record = change.record(index, Wanted(isr=isr, election=_election(rules, topic.name)))
                if record is not None:
                    records.append(record)
    return records


def _election(rules: Rules, topic: str) -> Election:
    return Election.UNCLEAN if rules.unclean(topic) else Election.ONLINE
