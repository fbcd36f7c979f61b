"""The parts an Image is made of: topics, partitions, brokers, each made from its metadata record and back (KIP-631)."""

from __future__ import annotations

from typing import Any, NamedTuple

from kpybroker.wire.stored import metadata as stored


class PartitionImage(NamedTuple):
    """One partition: leader, leader epoch, replicas, in-sync replicas. `leader` is -1 if there is none."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    directories: tuple[bytes, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    @classmethod
    def of(cls, record: stored.PartitionRecord) -> PartitionImage:
        return cls(
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            tuple(record.replicas),
            tuple(record.isr),
            tuple(record.directories),
            tuple(record.removing_replicas),
            tuple(record.adding_replicas),
            record.leader_recovery_state,
            tuple(record.eligible_leader_replicas or ()),
            tuple(record.last_known_elr or ()),
        )

    def changed(self, record: stored.PartitionChangeRecord) -> PartitionImage:
        """After a change; a leader named in it starts a new leader epoch, even where it is the same one."""
        new: dict[str, Any] = {"partition_epoch": self.partition_epoch + 1}
        for name in _CHANGEABLE:
            value = getattr(record, name)
            if value is not None:
                new[name] = tuple(value)
        if record.leader_recovery_state != -1:
            new["leader_recovery_state"] = record.leader_recovery_state
        if record.leader != -2:
            new.update(leader=record.leader, leader_epoch=self.leader_epoch + 1)
        return self._replace(**new)

    def record(self, topic_id: bytes, index: int) -> stored.PartitionRecord:
        return stored.PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=list(self.replicas),
            isr=list(self.isr),
            removing_replicas=list(self.removing_replicas),
            adding_replicas=list(self.adding_replicas),
            leader=self.leader,
            leader_recovery_state=self.leader_recovery_state,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=list(self.directories),
            eligible_leader_replicas=list(self.eligible_leader_replicas) or None,
            last_known_elr=list(self.last_known_elr) or None,
        )


_CHANGEABLE = (
    "isr",
    "replicas",
    "removing_replicas",
    "adding_replicas",
    "directories",
    "eligible_leader_replicas",
    "last_known_elr",
)


class TopicImage(NamedTuple):
    """One topic; partitions by index."""

    name: str
    id: bytes
    partitions: tuple[PartitionImage, ...]


class BrokerImage(NamedTuple):
    """One registered broker; `epoch` is its registration record's offset. Endpoints: (name, host, port, protocol)."""

    id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[tuple[str, str, int, int], ...]
    features: tuple[tuple[str, int, int], ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[bytes, ...]
    cordoned_log_dirs: tuple[bytes, ...] | None = None

    @classmethod
    def of(cls, record: stored.RegisterBrokerRecord) -> BrokerImage:
        return cls(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            tuple((e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
            tuple((f.name, f.min_supported_version, f.max_supported_version) for f in record.features),
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            tuple(record.log_dirs),
            None if record.cordoned_log_dirs is None else tuple(record.cordoned_log_dirs),
        )

    def changed(self, record: stored.BrokerRegistrationChangeRecord) -> BrokerImage:
        new: dict[str, Any] = {}
        if record.fenced:
            new["fenced"] = record.fenced == 1
        if record.in_controlled_shutdown:
            new["in_controlled_shutdown"] = True
        if record.log_dirs:
            new["log_dirs"] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            new["cordoned_log_dirs"] = tuple(record.cordoned_log_dirs)
        return self._replace(**new)

    def record(self) -> stored.RegisterBrokerRecord:
        return stored.RegisterBrokerRecord(
            broker_id=self.id,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.epoch,
            end_points=[
                stored.BrokerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
                for name, host, port, protocol in self.endpoints
            ],
            features=[
                stored.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, low, high in self.features
            ],
            rack=self.rack,
            fenced=self.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
            log_dirs=list(self.log_dirs),
            cordoned_log_dirs=None if self.cordoned_log_dirs is None else list(self.cordoned_log_dirs),
        )


class Changes(NamedTuple):
    """What differs from the Image before. Topics by name; a topic made anew under its name is in both."""

    removed: tuple[TopicImage, ...] = ()
    topics: tuple[str, ...] = ()
    configs: tuple[tuple[int, str], ...] = ()
