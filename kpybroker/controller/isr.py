"""Decides AlterPartition: a leader proposes a new ISR (KIP-497), and all its members must be eligible (KIP-841,
KIP-903)."""

from __future__ import annotations

from typing import Any

from kpybroker.controller.brokers import registered
from kpybroker.controller.commands import AlterPartition, IsrResult, ProposedIsr
from kpybroker.controller.election_rules import Rules
from kpybroker.controller.leadership import RECOVERED, RECOVERING, Election, PartitionChange, Wanted
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.topics import PartitionImage


def alter_partition(state: ControllerState, rules: Rules, command: AlterPartition) -> tuple[list[Any], list[IsrResult]]:
    """Decide on each proposal separately. Raises STALE_BROKER_EPOCH."""
    registered(state, command.node_id, command.broker_epoch)
    records: list[Any] = []
    results = []
    seen: set[tuple[bytes, int]] = set()
    for proposal in command.proposals:
        place = (proposal.topic_id, proposal.partition)
        try:
            if place in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition is named twice.")
            seen.add(place)
            record, result = _decide(state, rules, command.node_id, proposal)
        except KafkaError as refusal:
            results.append(IsrResult(*place, error_code=refusal.code))
            continue
        if record is not None:
            records.append(record)
        results.append(result)
    return records, results


def _decide(state: ControllerState, rules: Rules, node_id: int, proposal: ProposedIsr) -> tuple[Any | None, IsrResult]:
    name = state.names.get(proposal.topic_id)
    if name is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    topic = state.topics[name]
    partition = topic.partitions.get(proposal.partition)
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    _check_epochs(partition, node_id, proposal)
    _check_members(state, partition, node_id, proposal)
    change = PartitionChange(state, rules, topic, state.active)
    wanted = Wanted(
        isr=tuple(member for member, _ in proposal.isr),
        recovery=proposal.leader_recovery_state,
        election=Election.UNCLEAN if rules.unclean(name) else Election.ONLINE,
    )
    record = change.record(proposal.partition, wanted)
    after = partition if record is None else partition.changed(record)
    return record, IsrResult(
        proposal.topic_id,
        proposal.partition,
        # NEW_LEADER_ELECTED if the proposal completed a reassignment, and the leader is not among the remaining
        # replicas
        ErrorCode.NONE if after.leader == node_id else ErrorCode.NEW_LEADER_ELECTED,
        after.leader,
        after.leader_epoch,
        after.isr,
        after.leader_recovery_state,
        after.partition_epoch,
    )


def _check_epochs(partition: PartitionImage, node_id: int, proposal: ProposedIsr) -> None:
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)  # a newer controller has changed the partition
    if proposal.leader_epoch < partition.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if partition.leader != node_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if proposal.partition_epoch < partition.partition_epoch:
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION)


def _check_members(state: ControllerState, partition: PartitionImage, node_id: int, proposal: ProposedIsr) -> None:
    members = [member for member, _ in proposal.isr]
    if len(set(members)) < len(members) or not set(members) <= set(partition.replicas) or node_id not in members:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    recovery = proposal.leader_recovery_state
    if recovery not in (RECOVERED, RECOVERING):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if recovery == RECOVERING and (len(members) > 1 or partition.leader_recovery_state == RECOVERED):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    for member, epoch in proposal.isr:
        if not state.active(member) or epoch not in (-1, state.brokers[member].epoch):
            raise KafkaError(ErrorCode.INELIGIBLE_REPLICA)
