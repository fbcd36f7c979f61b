"""Decides on the registration, heartbeats, fencing and controlled shutdown of brokers, and elects new leaders for their
partitions.

Source: KIP-631. If a partition has no other replica, it keeps its leader in the metadata (decision 0006).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kpybroker.controller.commands import BrokerHeartbeat, BrokerState, RegisterBroker
from kpybroker.controller.directories import directory_in
from kpybroker.controller.election_rules import Rules
from kpybroker.controller.leadership import Election, PartitionChange, Wanted
from kpybroker.controller.log_dirs import lose_directories
from kpybroker.controller.sessions import BrokerSessions
from kpybroker.controller.state import ControllerState, TopicState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.brokers import BrokerImage
from kpybroker.metadata.topics import NO_LEADER, PartitionImage
from kpybroker.wire.directory_ids import MIGRATING, UNASSIGNED, is_reserved
from kpybroker.wire.stored import metadata as stored

METADATA_VERSION = "metadata.version"
UNFENCE = -1
FENCE = 1
UNFENCED = BrokerState(False, should_shut_down=False)
LET_GO = BrokerState(True, should_shut_down=True)


LEFT_AT_ONCE, LOOKED_AT_AT_ONCE = 2_000, 200_000
"""The numbers of changed partitions and of examined partitions after which one step of a fencing stops. A step takes
some tens of milliseconds. The partitions of one topic are changed together."""


class Lost(NamedTuple):
    """The directories that a broker no longer has after a restart. `instead` is the directory that replaces all of
    them; None if the broker still has some of its directories. In that case the lost replicas may be in the remaining
    directories, or the broker reports where they are."""

    directories: frozenset[bytes]
    instead: bytes | None

    def has(self, partition: PartitionImage, node_id: int) -> bool:
        """Whether a replica was in one of these directories."""
        return node_id in partition.replicas and directory_in(partition, node_id) in self.directories

    def replaced(self, partition: PartitionImage, node_id: int) -> tuple[bytes, ...] | None:
        """The new directories of a partition for which `has` is true; None if they do not change."""
        if self.instead is None:
            return None
        place = partition.replicas.index(node_id)
        before = (*partition.directories, *(MIGRATING,) * len(partition.replicas))[: len(partition.replicas)]
        return (*before[:place], self.instead, *before[place + 1 :])


def register_broker(
    state: ControllerState, rules: Rules, command: RegisterBroker, next_offset: int
) -> tuple[list[Any], int]:
    """Decide on a registration. The broker epoch is the offset of the registration record, which is the first one
    written.

    A broker that registers again keeps only the leaderships that no other broker can take over. The leader epoch is
    bumped unless its previous incarnation stopped cleanly, since its log may have lost records.
    """
    known = state.brokers.get(command.node_id)
    if known is not None and known.incarnation_id == command.incarnation_id:
        return [], known.epoch
    _check_features(state, command)
    _check_directories(state, command)
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
    lost = _lost_directories(known, command)
    return [record, *leave(state, rules, command.node_id, stopped_cleanly=clean, lost=lost)], next_offset


def _lost_directories(known: BrokerImage | None, command: RegisterBroker) -> Lost | None:
    """The directories that the broker had before and no longer has (KIP-858). If none of its directories is left,
    replicas without an assigned directory are lost too."""
    if known is None:
        return None
    gone = frozenset(known.log_dirs) - frozenset(command.log_dirs)
    if not gone:
        return None
    if len(gone) < len(known.log_dirs):
        return Lost(gone, None)
    return Lost(gone | {MIGRATING, UNASSIGNED}, command.log_dirs[0] if len(command.log_dirs) == 1 else UNASSIGNED)


def _check_features(state: ControllerState, command: RegisterBroker) -> None:
    supported = {name: (low, high) for name, low, high in command.features}
    if METADATA_VERSION not in supported:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, f"Request features do not contain '{METADATA_VERSION}'.")
    for name, level in state.features.items():
        low, high = supported.get(name, (0, 0))
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. "
                f"The broker wants a version between {low} and {high}, inclusive.",
            )


def _check_directories(state: ControllerState, command: RegisterBroker) -> None:
    if not command.log_dirs:
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "No directories specified in request.")
    if any(map(is_reserved, command.log_dirs)):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "Reserved directory ID in request")
    if len(set(command.log_dirs)) < len(command.log_dirs):
        raise KafkaError(ErrorCode.INVALID_REGISTRATION, "Broker cannot register with duplicate log directories.")
    for node_id, broker in state.brokers.items():
        if node_id != command.node_id and any(each in broker.log_dirs for each in command.log_dirs):
            raise KafkaError(
                ErrorCode.INVALID_REGISTRATION, f"Broker {node_id} is registered with the same log directory."
            )


def registered(state: ControllerState, node_id: int, epoch: int) -> BrokerImage:
    """Return the broker's registration, which must have this epoch. Raises STALE_BROKER_EPOCH."""
    broker = state.brokers.get(node_id)
    if broker is None or broker.epoch != epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {node_id} is not registered with epoch {epoch}.")
    return broker


def heartbeat(
    state: ControllerState, rules: Rules, sessions: BrokerSessions, command: BrokerHeartbeat, next_offset: int
) -> tuple[list[Any], BrokerState]:
    """Decide on a heartbeat. Raises STALE_BROKER_EPOCH if the broker epoch is not that of the current registration.

    A broker that has completed its controlled shutdown, or died during it, must register again.
    """
    broker = registered(state, command.node_id, command.broker_epoch)
    caught_up = command.metadata_offset >= broker.epoch
    if command.want_shut_down:
        records, told = _shut_down(state, rules, sessions, command, broker, next_offset)
    elif lost := lose_directories(state, rules, command.node_id, command.offline_log_dirs):
        records, told = lost, BrokerState(broker.fenced, should_shut_down=False)
    elif broker.fenced and not command.want_fence and caught_up and not broker.in_controlled_shutdown:
        change = stored.BrokerRegistrationChangeRecord(
            broker_id=command.node_id, broker_epoch=command.broker_epoch, fenced=UNFENCE
        )
        records, told = [change, *come_back(state, rules, command.node_id)], UNFENCED
    else:
        records, told = [], BrokerState(broker.fenced, should_shut_down=False)
    return [*records, *_cordoned(broker, command)], told._replace(caught_up=caught_up)


def _cordoned(broker: BrokerImage, command: BrokerHeartbeat) -> list[Any]:
    """Store which directories of the broker are cordoned, if that has changed (KIP-1066)."""
    now = command.cordoned_log_dirs
    if now is None or set(now) == set(broker.cordoned_log_dirs or ()):
        return []
    return [
        stored.BrokerRegistrationChangeRecord(
            broker_id=command.node_id, broker_epoch=command.broker_epoch, cordoned_log_dirs=list(now)
        )
    ]


def fence(state: ControllerState, rules: Rules, node_id: int) -> list[Any]:
    """Fence a broker: clients are no longer directed to it, and other brokers take over its leaderships."""
    return [_fenced(node_id, state.brokers[node_id]), *leave(state, rules, node_id)]


def _fenced(node_id: int, broker: BrokerImage) -> stored.BrokerRegistrationChangeRecord:
    return stored.BrokerRegistrationChangeRecord(broker_id=node_id, broker_epoch=broker.epoch, fenced=FENCE)


class Leaving:
    """The fencing of a broker with many partitions: each step moves some, and the last one fences it.

    The broker is fenced last, so that a client that learns of a new leader can already connect to it. The broker cannot
    be unfenced before the last step.
    """

    def __init__(self, state: ControllerState, node_id: int) -> None:
        self.node_id = node_id
        self._epoch = state.brokers[node_id].epoch
        self._topics = list(state.topics)[::-1]
        self._is_new = True

    def step(self, state: ControllerState, rules: Rules) -> tuple[list[Any], bool]:
        """Return the next records, and whether they are the last ones. There are none if another incarnation has
        registered."""
        broker = state.brokers.get(self.node_id)
        if broker is None or broker.epoch != self._epoch or broker.fenced:
            return [], True
        records: list[Any] = []
        looked_at = 0
        while self._topics and len(records) < LEFT_AT_ONCE and looked_at < LOOKED_AT_AT_ONCE:
            topic = state.topics.get(self._topics.pop())
            if topic is not None:
                looked_at += len(topic.partitions)
                records += _leave_topic(state, rules, topic, self.node_id)
        if self._is_new and not self._topics:
            return [_fenced(self.node_id, broker), *records], True
        self._is_new = False
        if self._topics or records:
            return records, False
        return fence(state, rules, self.node_id), True  # includes the partitions that were placed there in the meantime


def unregister_broker(state: ControllerState, rules: Rules, node_id: int) -> tuple[list[Any], None]:
    """Remove a broker's registration. Raises BROKER_ID_NOT_REGISTERED."""
    broker = state.brokers.get(node_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} is not currently registered")
    gone = stored.UnregisterBrokerRecord(broker_id=node_id, broker_epoch=broker.epoch)
    return [*leave(state, rules, node_id, may_stay=False), gone], None


def _shut_down(
    state: ControllerState,
    rules: Rules,
    sessions: BrokerSessions,
    command: BrokerHeartbeat,
    broker: BrokerImage,
    next_offset: int,
) -> tuple[list[Any], BrokerState]:
    """Decide on a controlled shutdown. Leaderships move first; the broker may stop when all new leaders have applied
    the change."""
    node_id = command.node_id
    if broker.fenced:
        return [], LET_GO
    if not broker.in_controlled_shutdown:
        moved = leave(state, rules, node_id)
        stays = bool(moved) and any(state.active(other) for other in state.brokers if other != node_id)
        change = stored.BrokerRegistrationChangeRecord(
            broker_id=node_id,
            broker_epoch=command.broker_epoch,
            in_controlled_shutdown=1,
            fenced=0 if stays else FENCE,
        )
        if not stays:
            return [change, *moved], LET_GO
        sessions.shutdown_offsets[node_id] = next_offset + len(moved)
        return [change, *moved], UNFENCED
    wanted = sessions.shutdown_offsets.setdefault(node_id, next_offset - 1)
    if sessions.applied_by_all(state, leaving=node_id) < wanted:
        return [], UNFENCED
    return fence(state, rules, node_id), LET_GO


def leave(
    state: ControllerState,
    rules: Rules,
    node_id: int,
    *,
    stopped_cleanly: bool | None = None,
    may_stay: bool = True,
    lost: Lost | None = None,
) -> list[Any]:
    """Remove a broker's leaderships, and remove it from ISRs, wherever other brokers can replace it.

    - stopped_cleanly: None while this incarnation lives; otherwise whether it stopped cleanly.
    - may_stay: whether a partition without another replica keeps its leader, since changing it to none and back would
      cost two records. Such a partition gets a new leader epoch if the incarnation did not stop cleanly.
    - lost: directories that the broker no longer has. Replicas in them leave the ISR, and they lose their
      leadership even if no other replica can lead, since an empty log must not replace acknowledged records.
    """
    records: list[Any] = []
    for topic in state.topics.values():
        records += _leave_topic(
            state, rules, topic, node_id, is_unsure=stopped_cleanly is False, may_stay=may_stay, lost=lost
        )
    return records


def _leave_topic(
    state: ControllerState,
    rules: Rules,
    topic: TopicState,
    node_id: int,
    *,
    is_unsure: bool = False,
    may_stay: bool = True,
    lost: Lost | None = None,
) -> list[Any]:
    """`leave` for the partitions of one topic."""
    records: list[Any] = []
    change: PartitionChange | None = None
    for index, partition in topic.partitions.items():
        was_lost = lost is not None and lost.has(partition, node_id)
        replaced = lost.replaced(partition, node_id) if lost is not None and was_lost else None
        if not was_lost and may_stay and partition.leader == node_id and partition.replicas == (node_id,):
            if is_unsure:
                records.append(
                    stored.PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=node_id)
                )
            continue
        in_sync = node_id in partition.isr
        is_eligible = is_unsure and node_id in partition.eligible_leader_replicas
        if not (in_sync or node_id == partition.leader or is_eligible or was_lost):
            continue
        if change is None:
            change = PartitionChange(state, rules, topic, lambda other: other != node_id and state.active(other))
        wanted = Wanted(
            isr=tuple(other for other in partition.isr if other != node_id),
            election=_election(rules, topic.name),
            lost_its_log=node_id if is_unsure or replaced is not None else None,
            directories=replaced,
        )
        record = change.record(index, wanted)
        if record is not None:
            records.append(record)
    return records


def come_back(state: ControllerState, rules: Rules, node_id: int) -> list[Any]:
    """Make a broker that is unfenced the leader of its partitions that have no leader."""
    records: list[Any] = []
    for topic in state.topics.values():
        change: PartitionChange | None = None
        for index, partition in topic.partitions.items():
            if partition.leader != NO_LEADER or node_id not in partition.replicas:
                continue
            if change is None:
                change = PartitionChange(state, rules, topic, lambda other: other == node_id or state.active(other))
            record = change.record(index, Wanted(election=_election(rules, topic.name)))
            if record is not None:
                records.append(record)
    return records


def _election(rules: Rules, topic: str) -> Election:
    return Election.UNCLEAN if rules.unclean(topic) else Election.ONLINE
