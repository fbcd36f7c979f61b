"""Brokers: registration, fencing, controlled shutdown; and what that does to the leaders of partitions."""

from __future__ import annotations

from typing import Any

from kpybroker.controller.commands import BrokerHeartbeat, BrokerState, RegisterBroker
from kpybroker.controller.state import NO_LEADER, BrokerRegistration, ControllerState, PartitionState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.stored import metadata as stored

UNFENCE = -1
FENCE = 1


def register_broker(state: ControllerState, command: RegisterBroker, next_offset: int) -> tuple[list[Any], int]:
    """Decide a registration: its epoch is the offset of its record, which comes first.

    A broker that comes back keeps its leaderships only where nobody else is in sync; a leader epoch ends with the
    incarnation, unless that stopped cleanly, for then nothing of its log can have been lost.
    """
    _check_features(state, command)
    known = state.brokers.get(command.node_id)
    if known is not None and known.incarnation_id == command.incarnation_id:
        return [], known.epoch
    record = stored.RegisterBrokerRecord(
        broker_id=command.node_id,
        incarnation_id=command.incarnation_id,
        broker_epoch=next_offset,
        end_points=[
            stored.BrokerEndpoint(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in command.endpoints
        ],
        features=[
            stored.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in command.features
        ],
        rack=command.rack,
        fenced=True,
        log_dirs=list(command.log_dirs),
    )
    clean = known is not None and command.previous_epoch == known.epoch
    return [record, *_leave(state, command.node_id, keep_epoch=clean)], next_offset


def _check_features(state: ControllerState, command: RegisterBroker) -> None:
    supported = {name: (low, high) for name, low, high in command.features}
    for name, level in state.features.items():
        low, high = supported.get(name, (0, 0))
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. "
                f"The broker wants a version between {low} and {high}, inclusive.",
            )


def heartbeat(state: ControllerState, command: BrokerHeartbeat) -> tuple[list[Any], BrokerState]:
    """Decide a heartbeat (KIP-631). Raises STALE_BROKER_EPOCH for a broker of another registration."""
    broker = state.brokers.get(command.node_id)
    if broker is None or broker.epoch != command.broker_epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {command.node_id} is not registered with that epoch.")
    if command.want_shut_down:
        return _shut_down(state, command, broker)
    if command.want_fence == broker.fenced:
        return [], BrokerState(broker.fenced, should_shut_down=False)
    change = stored.BrokerRegistrationChangeRecord(
        broker_id=command.node_id,
        broker_epoch=command.broker_epoch,
        fenced=FENCE if command.want_fence else UNFENCE,
    )
    if command.want_fence:
        return [change, *_leave(state, command.node_id, keep_epoch=True)], BrokerState(True, should_shut_down=False)
    return [change, *_return(state, command.node_id)], BrokerState(False, should_shut_down=False)


def _shut_down(
    state: ControllerState, command: BrokerHeartbeat, broker: BrokerRegistration
) -> tuple[list[Any], BrokerState]:
    records: list[Any] = []
    if not broker.in_controlled_shutdown and not broker.fenced:
        change = stored.BrokerRegistrationChangeRecord(
            broker_id=command.node_id, broker_epoch=command.broker_epoch, in_controlled_shutdown=1
        )
        records = [change, *_leave(state, command.node_id, keep_epoch=True)]
    return records, BrokerState(broker.fenced, should_shut_down=True)


def _leave(state: ControllerState, node_id: int, *, keep_epoch: bool) -> list[Any]:
    """Give the leaderships of a broker to others in sync. Where there are none it stays, under a new leader epoch
    unless `keep_epoch`: nobody else could serve, and a change to no leader and back would be two records for each."""
    records = []
    for topic in state.topics.values():
        for index, partition in topic.partitions.items():
            if node_id not in partition.isr:
                continue
            others = tuple(other for other in partition.isr if other != node_id)
            leader = next((other for other in others if state.active(other)), None)
            if leader is not None:
                records.append(
                    stored.PartitionChangeRecord(
                        partition_id=index,
                        topic_id=topic.topic_id,
                        isr=list(others),
                        leader=leader if partition.leader == node_id else partition.leader,
                    )
                )
            elif partition.leader == node_id and not keep_epoch:
                records.append(
                    stored.PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=node_id)
                )
    return records


def _return(state: ControllerState, node_id: int) -> list[Any]:
    """A live broker leads again what has no leader and has it in sync."""
    return [
        stored.PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=node_id)
        for topic in state.topics.values()
        for index, partition in topic.partitions.items()
        if _leaderless(partition) and node_id in partition.isr
    ]


def _leaderless(partition: PartitionState) -> bool:
    return partition.leader == NO_LEADER
