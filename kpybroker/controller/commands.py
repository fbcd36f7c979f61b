"""The commands of the controller and their answers.

Both are plain values, separate from wire messages. A KafkaError refuses a whole command; the result of a refused item
contains its error code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from kpybroker.controller.acl_commands import CreateAcls, DeleteAcls
from kpybroker.controller.scram_commands import AlterUserScramCredentials
from kpybroker.controller.token_commands import CreateDelegationToken, ExpireDelegationToken, RenewDelegationToken
from kpybroker.errors import ErrorCode
from kpybroker.machine.contract import Tick
from kpybroker.metadata.brokers import BrokerEndpoint

ZERO_UUID = bytes(16)
NO_CONFIGS: Mapping[str, str] = MappingProxyType({})


ChargePartitions = Callable[[int], None]
"""Called with the number of partitions that a topic gains or loses, before the change. Raises THROTTLING_QUOTA_EXCEEDED
(KIP-599)."""


def free(_partitions: int) -> None:
    """The charge function without a quota: it does nothing."""


class AlterOp(IntEnum):
    """The operations of IncrementalAlterConfigs on one setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class RegisterBroker(NamedTuple):
    """Register a broker that starts (KIP-631). It is fenced until a BrokerHeartbeat unfences it. Answer: the broker
    epoch (int).

    `previous_epoch` is the broker epoch at its last clean shutdown, or -1. If it is -1, the partitions that the broker
    keeps leading get a new leader epoch.
    """

    node_id: int
    incarnation_id: bytes
    endpoints: tuple[BrokerEndpoint, ...]
    features: tuple[tuple[str, int, int], ...] = ()
    rack: str | None = None
    log_dirs: tuple[bytes, ...] = ()
    previous_epoch: int = -1
    is_own: bool = False
    """Whether the broker is on the node of the active controller, so that no other process can be that broker."""


class RegisterController(NamedTuple):
    """Register a controller that starts (KIP-919). Answer: None."""

    node_id: int
    incarnation_id: bytes
    zk_migration_ready: bool = False
    endpoints: tuple[BrokerEndpoint, ...] = ()
    features: tuple[tuple[str, int, int], ...] = ()


class BrokerHeartbeat(NamedTuple):
    """A registered broker is alive. It may request to be fenced, unfenced, or shut down. Answer: BrokerState.

    `metadata_offset` is the last record that the broker has applied.
    """

    node_id: int
    broker_epoch: int
    want_fence: bool = False
    want_shut_down: bool = False
    metadata_offset: int = (1 << 63) - 1
    offline_log_dirs: tuple[bytes, ...] = ()
    cordoned_log_dirs: tuple[bytes, ...] | None = None
    """None if the broker does not report them."""


class BrokerState(NamedTuple):
    """The state of a broker in the controller. A broker is caught up if it has applied its own registration."""

    fenced: bool
    should_shut_down: bool
    caught_up: bool = True


class AssignReplicas(NamedTuple):
    """A broker reports the directories of replicas (KIP-858): a (directory id, topic id, partition) for each replica.

    Answer: an error code for each replica, in the given order.
    """

    node_id: int
    broker_epoch: int
    assignments: tuple[tuple[bytes, bytes, int], ...]


class BrokerLost(NamedTuple):
    """The connection of this incarnation has ended. Its session ends, so that a new incarnation can register at once.
    If `dead` is true, the broker is also fenced. Answer: None."""

    node_id: int
    broker_epoch: int
    dead: bool = False


class UnregisterBroker(NamedTuple):
    """Remove the registration of a broker that will not start again. Answer: None. Raises BROKER_ID_NOT_REGISTERED."""

    node_id: int


class NewTopic(NamedTuple):
    """A topic to create. -1 means the default. `assignments` has (partition, brokers) for each partition of a manual
    assignment, in which case the two numbers are -1."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


class CreateTopics(NamedTuple):
    """Topics to create. Answer: list[TopicResult] in the given order. A name that occurs twice has one result, a
    refusal."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False
    charge: ChargePartitions = free


class TopicResult(NamedTuple):
    """The result for one topic. `configs` are the overrides of the topic, empty if it was refused."""

    name: str | None
    topic_id: bytes = ZERO_UUID
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = NO_CONFIGS


class DeleteTopics(NamedTuple):
    """Topics to delete, by name (id zero) or by id (name None). Answer: list[TopicResult], as for CreateTopics."""

    topics: tuple[tuple[str | None, bytes], ...]
    charge: ChargePartitions = free


class NewPartitions(NamedTuple):
    """Grow a topic to `total` partitions. `assignments` has the brokers of each new partition, or is None."""

    name: str
    total: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitions(NamedTuple):
    """Partitions to add. Answer: list[TopicResult], as for CreateTopics."""

    topics: tuple[NewPartitions, ...]
    validate_only: bool = False
    charge: ChargePartitions = free


class ReplaceConfigs(NamedTuple):
    """The new settings of one resource; all other settings are reset (AlterConfigs)."""

    resource_type: int
    resource_name: str
    configs: tuple[tuple[str, str | None], ...]


class AlterConfigs(NamedTuple):
    """Settings to replace. The changes of one resource are made together or not at all.

    Answer: list[ConfigResult] in the given order.
    """

    resources: tuple[ReplaceConfigs, ...]
    validate_only: bool = False
    host: str | None = None
    """The address of the client. The controller refuses a change that would lock out this client."""


class ChangeConfigs(NamedTuple):
    """Changes of one resource's settings: (name, AlterOp code, value)."""

    resource_type: int
    resource_name: str
    changes: tuple[tuple[str, int, str | None], ...]


class IncrementalAlterConfigs(NamedTuple):
    """Settings to change. The changes of one resource are made together or not at all.

    Answer: list[ConfigResult] in the given order.
    """

    resources: tuple[ChangeConfigs, ...]
    validate_only: bool = False
    host: str | None = None
    """The address of the client. The controller refuses a change that would lock out this client."""


class ConfigResult(NamedTuple):
    """The result for one resource."""

    resource_type: int
    resource_name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class AllocateProducerIds(NamedTuple):
    """Allocate a block of producer ids (KIP-730). Answer: ProducerIdBlock."""

    node_id: int
    broker_epoch: int


class ProposedIsr(NamedTuple):
    """A new ISR for a partition: the node id of each member, and its broker epoch as far as the leader knows
    it, else -1."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    leader_recovery_state: int = 0


class AlterPartition(NamedTuple):
    """Proposals of the leader (KIP-497). Answer: list[IsrResult] in the given order."""

    node_id: int
    broker_epoch: int
    proposals: tuple[ProposedIsr, ...]


class IsrResult(NamedTuple):
    """The result of one proposal. If there is no error, it has the new state of the partition."""

    topic_id: bytes
    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    leader: int = 0
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    partition_epoch: int = 0


class ElectionType(IntEnum):
    """The types of election of ElectLeaders (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectLeaders(NamedTuple):
    """Elect leaders of (topic, partition indexes), or of all partitions.

    Answer: list[PartitionResult] in the given order, by topic.
    """

    election_type: int
    partitions: tuple[tuple[str, tuple[int, ...]], ...] | None = None


class PartitionResult(NamedTuple):
    """The result for one partition."""

    topic: str
    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class Reassignment(NamedTuple):
    """The new replicas of a partition, preferred leader first; None cancels a reassignment."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class AlterReassignments(NamedTuple):
    """Reassignments to begin or cancel. Answer: list[PartitionResult] in the given order."""

    reassignments: tuple[Reassignment, ...]
    allow_replication_factor_change: bool = True


class ListReassignments(NamedTuple):
    """List the reassignments in progress: of the given (topic, partition indexes), or all. Answer:
    list[OngoingReassignment]."""

    partitions: tuple[tuple[str, tuple[int, ...]], ...] | None = None


class OngoingReassignment(NamedTuple):
    """A partition whose reassignment is in progress."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class QuotaChange(NamedTuple):
    """Changed quotas of one entity. The entity is a list of (type, name), in which the name None stands for the
    default. A quota with the value None is removed."""

    entity: tuple[tuple[str, str | None], ...]
    ops: tuple[tuple[str, float | None], ...]


class AlterClientQuotas(NamedTuple):
    """Quotas to change. The changes of one entity are made together or not at all. Answer: list[QuotaResult], one per
    entity."""

    changes: tuple[QuotaChange, ...]
    validate_only: bool = False


class QuotaResult(NamedTuple):
    """The result for one entity."""

    entity: tuple[tuple[str, str | None], ...]
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class UpgradeType(IntEnum):
    """How UpdateFeatures may change a level (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """A new finalized level; 0 removes the feature."""

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


class UpdateFeatures(NamedTuple):
    """Feature levels to change. Either all are changed, or none. Answer: None. Raises KafkaError for the first feature
    that cannot be changed."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Producer ids `first` to `first + count - 1`."""

    first: int
    count: int


Command = (
    Tick
    | RegisterBroker
    | RegisterController
    | BrokerHeartbeat
    | AssignReplicas
    | BrokerLost
    | UnregisterBroker
    | AlterPartition
    | ElectLeaders
    | AlterReassignments
    | ListReassignments
    | UpdateFeatures
    | CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | IncrementalAlterConfigs
    | AlterClientQuotas
    | AlterUserScramCredentials
    | CreateAcls
    | DeleteAcls
    | CreateDelegationToken
    | RenewDelegationToken
    | ExpireDelegationToken
    | AllocateProducerIds
)
