"""The controller's hard state, and the one place where it changes: replaying records of `__cluster_metadata`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kpybroker.controller.commands import BrokerEndpoint, ResourceType
from kpybroker.metadata.quotas import Entity, changed
from kpybroker.wire.stored import metadata as stored

NO_LEADER = -1
NO_LEADER_CHANGE = -2


@dataclass(slots=True)
class PartitionState:
    """One partition, as PartitionRecord and PartitionChangeRecord tell it."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    directories: tuple[bytes, ...]
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def take(self, record: stored.PartitionChangeRecord) -> None:
        """Become what the record says; a leader named in it begins a new leader epoch, even where it is the same."""
        if record.isr is not None:
            self.isr = tuple(record.isr)
        if record.replicas is not None:
            self.replicas = tuple(record.replicas)
        if record.removing_replicas is not None:
            self.removing_replicas = tuple(record.removing_replicas)
        if record.adding_replicas is not None:
            self.adding_replicas = tuple(record.adding_replicas)
        if record.directories is not None:
            self.directories = tuple(record.directories)
        if record.eligible_leader_replicas is not None:
            self.eligible_leader_replicas = tuple(record.eligible_leader_replicas)
        if record.last_known_elr is not None:
            self.last_known_elr = tuple(record.last_known_elr)
        if record.leader_recovery_state != -1:
            self.leader_recovery_state = record.leader_recovery_state
        if record.leader != NO_LEADER_CHANGE:
            self.leader = record.leader
            self.leader_epoch += 1
        self.partition_epoch += 1


@dataclass(slots=True)
class TopicState:
    """One topic; partitions by index."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionState] = field(default_factory=dict)


@dataclass(slots=True)
class BrokerRegistration:
    """A broker, live or not; `epoch` is the offset of its registration record."""

    epoch: int
    incarnation_id: bytes
    endpoints: tuple[BrokerEndpoint, ...]
    features: tuple[tuple[str, int, int], ...]
    rack: str | None
    log_dirs: tuple[bytes, ...]
    fenced: bool
    in_controlled_shutdown: bool


@dataclass(slots=True)
class ControllerState:
    """Everything the controller decides by. Equal after replaying equal records."""

    topics: dict[str, TopicState] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)
    """Topic id -> name."""
    normal_names: dict[str, str] = field(default_factory=dict)
    """Normal name -> one topic that has it; where names are kept apart by case, for names with `.` or `_` alone."""
    folds_case: bool = False
    """Names that differ in case only collide: they would be one directory in the file system of log.dirs."""
    brokers: dict[int, BrokerRegistration] = field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    quotas: dict[Entity, Mapping[str, float]] = field(default_factory=dict)
    scram_credentials: set[tuple[str, int]] = field(default_factory=set)
    """User and mechanism of each; what they are is in the Image."""
    next_producer_id: int = 0
    partition_count: int = 0
    open_transaction: list[Any] | None = None
    """The records of a metadata transaction that has not ended (KIP-866)."""

    def apply(self, record: Any) -> None:
        """Replay one record. Kinds that the controller decides nothing by (ACLs, tokens) change nothing."""
        kind = type(record)
        if kind is stored.BeginTransactionRecord:
            self.open_transaction = []
        elif kind is stored.AbortTransactionRecord:
            self.open_transaction = None
        elif kind is stored.EndTransactionRecord:
            held, self.open_transaction = self.open_transaction or [], None
            for inner in held:
                self.apply(inner)
        elif self.open_transaction is not None:
            self.open_transaction.append(record)
        elif kind in CHANGES:
            CHANGES[kind](self, record)

    def normal_name(self, topic: str) -> str:
        """Names that have it in common collide: metric names are made of them, with `_` for `.`."""
        normal = topic.replace(".", "_")
        return normal.lower() if self.folds_case else normal

    def settings(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The settings a resource has of its own."""
        return self.configs.get((resource_type, name), {})

    def active(self, node_id: int) -> bool:
        """Registered, not fenced and not on its way out: may lead, and may be given replicas."""
        broker = self.brokers.get(node_id)
        return broker is not None and not broker.fenced and not broker.in_controlled_shutdown


def _topic(state: ControllerState, record: stored.TopicRecord) -> None:
    state.topics[record.name] = TopicState(record.name, record.topic_id)
    state.names[record.topic_id] = record.name
    if state.folds_case or "." in record.name or "_" in record.name:
        state.normal_names.setdefault(state.normal_name(record.name), record.name)


def _remove_topic(state: ControllerState, record: stored.RemoveTopicRecord) -> None:
    name = state.names.pop(record.topic_id)
    topic = state.topics.pop(name)
    state.partition_count -= len(topic.partitions)
    state.configs.pop((ResourceType.TOPIC, name), None)
    if state.normal_names.get(state.normal_name(name)) == name:
        del state.normal_names[state.normal_name(name)]


def _partition(state: ControllerState, record: stored.PartitionRecord) -> None:
    partitions = state.topics[state.names[record.topic_id]].partitions
    state.partition_count += record.partition_id not in partitions
    partitions[record.partition_id] = PartitionState(
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        replicas=tuple(record.replicas),
        isr=tuple(record.isr),
        directories=tuple(record.directories),
        removing_replicas=tuple(record.removing_replicas),
        adding_replicas=tuple(record.adding_replicas),
        leader_recovery_state=record.leader_recovery_state,
        eligible_leader_replicas=tuple(record.eligible_leader_replicas or ()),
        last_known_elr=tuple(record.last_known_elr or ()),
    )


def _partition_change(state: ControllerState, record: stored.PartitionChangeRecord) -> None:
    state.topics[state.names[record.topic_id]].partitions[record.partition_id].take(record)


def _clear_elr(state: ControllerState, record: stored.ClearElrRecord) -> None:
    for topic in [state.topics[record.topic_name]] if record.topic_name else state.topics.values():
        for partition in topic.partitions.values():
            partition.eligible_leader_replicas = partition.last_known_elr = ()


def _register_broker(state: ControllerState, record: stored.RegisterBrokerRecord) -> None:
    state.brokers[record.broker_id] = BrokerRegistration(
        epoch=record.broker_epoch,
        incarnation_id=record.incarnation_id,
        endpoints=tuple(BrokerEndpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
        features=tuple((f.name, f.min_supported_version, f.max_supported_version) for f in record.features),
        rack=record.rack,
        log_dirs=tuple(record.log_dirs),
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
    )


def _change_registration(state: ControllerState, record: stored.BrokerRegistrationChangeRecord) -> None:
    broker = state.brokers[record.broker_id]
    if record.fenced:
        broker.fenced = record.fenced == 1
    if record.in_controlled_shutdown:
        broker.in_controlled_shutdown = True
    if record.log_dirs:
        broker.log_dirs = tuple(record.log_dirs)


def _fence_broker(state: ControllerState, record: stored.FenceBrokerRecord) -> None:
    state.brokers[record.id].fenced = True


def _unfence_broker(state: ControllerState, record: stored.UnfenceBrokerRecord) -> None:
    state.brokers[record.id].fenced = False


def _unregister_broker(state: ControllerState, record: stored.UnregisterBrokerRecord) -> None:
    del state.brokers[record.broker_id]


def _config(state: ControllerState, record: stored.ConfigRecord) -> None:
    key = (record.resource_type, record.resource_name)
    if record.value is not None:
        state.configs.setdefault(key, {})[record.name] = record.value
        return
    settings = state.configs.get(key, {})
    settings.pop(record.name, None)
    if not settings:
        state.configs.pop(key, None)


def _feature(state: ControllerState, record: stored.FeatureLevelRecord) -> None:
    if record.feature_level:
        state.features[record.name] = record.feature_level
    else:
        state.features.pop(record.name, None)


def _producer_ids(state: ControllerState, record: stored.ProducerIdsRecord) -> None:
    state.next_producer_id = record.next_producer_id


def _quota(state: ControllerState, record: stored.ClientQuotaRecord) -> None:
    changed(state.quotas, record)


def _scram_credential(state: ControllerState, record: stored.UserScramCredentialRecord) -> None:
    state.scram_credentials.add((record.name, record.mechanism))


def _remove_scram_credential(state: ControllerState, record: stored.RemoveUserScramCredentialRecord) -> None:
    state.scram_credentials.discard((record.name, record.mechanism))


CHANGES: Mapping[type[Any], Callable[[ControllerState, Any], None]] = {
    stored.TopicRecord: _topic,
    stored.RemoveTopicRecord: _remove_topic,
    stored.PartitionRecord: _partition,
    stored.PartitionChangeRecord: _partition_change,
    stored.ClearElrRecord: _clear_elr,
    stored.RegisterBrokerRecord: _register_broker,
    stored.BrokerRegistrationChangeRecord: _change_registration,
    stored.FenceBrokerRecord: _fence_broker,
    stored.UnfenceBrokerRecord: _unfence_broker,
    stored.UnregisterBrokerRecord: _unregister_broker,
    stored.ConfigRecord: _config,
    stored.FeatureLevelRecord: _feature,
    stored.ProducerIdsRecord: _producer_ids,
    stored.ClientQuotaRecord: _quota,
    stored.UserScramCredentialRecord: _scram_credential,
    stored.RemoveUserScramCredentialRecord: _remove_scram_credential,
}
