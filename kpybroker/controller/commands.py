"""What the controller can be asked. Commands and answers are plain values: no message classes of the wire, no I/O.

A command is refused as a whole by a KafkaError; what is refused per item has its code in the item's result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from kpybroker.controller.scram_commands import AlterUserScramCredentials
from kpybroker.errors import ErrorCode
from kpybroker.machine.contract import Tick
from kpybroker.metadata.brokers import BrokerEndpoint

ZERO_UUID = bytes(16)
NO_CONFIGS: Mapping[str, str] = MappingProxyType({})


ChargePartitions = Callable[[int], None]
"""Told of the partitions that a topic gains or loses before it does. Raises THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def free(_partitions: int) -> None:
    """No quota."""


class ResourceType(IntEnum):
    """Kinds of things that have settings, by Kafka's codes (ConfigResource)."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class AlterOp(IntEnum):
    """What IncrementalAlterConfigs does with one setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class RegisterBroker(NamedTuple):
    """A broker starts (KIP-631). It stays fenced until BrokerHeartbeat asks otherwise. Answer: its epoch (int).

    `previous_epoch` is the epoch of its last clean stop, -1 for none: leaderships it cannot be sure of get a new epoch.
    """

    node_id: int
    incarnation_id: bytes
    endpoints: tuple[BrokerEndpoint, ...]
    features: tuple[tuple[str, int, int], ...] = ()
    rack: str | None = None
    log_dirs: tuple[bytes, ...] = ()
    previous_epoch: int = -1
    is_own: bool = False
    """By the node of the active controller itself: nobody else can be that broker."""


class BrokerHeartbeat(NamedTuple):
    """A registered broker lives, and wants to be fenced, unfenced, or to stop in good order. Answer: BrokerState.

    `metadata_offset` is the last record that the broker has applied.
    """

    node_id: int
    broker_epoch: int
    want_fence: bool = False
    want_shut_down: bool = False
    metadata_offset: int = (1 << 63) - 1
    offline_log_dirs: tuple[bytes, ...] = ()


class BrokerState(NamedTuple):
    """How the controller sees a broker. Caught up: it has applied its own registration."""

    fenced: bool
    should_shut_down: bool
    caught_up: bool = True


class AssignReplicas(NamedTuple):
    """A broker says where its replicas are: (directory id, topic id, partition) of each (KIP-858). Answer: a code for
    each, in the order asked."""

    node_id: int
    broker_epoch: int
    assignments: tuple[tuple[bytes, bytes, int], ...]


class BrokerLost(NamedTuple):
    """Nobody is there any more who was this incarnation: its connection ended. Its session is over, so that a new
    incarnation need not wait for it; with `dead` it is fenced as well. Answer: None."""

    node_id: int
    broker_epoch: int
    dead: bool = False


class UnregisterBroker(NamedTuple):
    """Forget a broker that is not coming back. Answer: None. Raises BROKER_ID_NOT_REGISTERED."""

    node_id: int


class NewTopic(NamedTuple):
    """A topic to create. -1 means the default. `assignments`: (partition, brokers), instead of the two numbers."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


class CreateTopics(NamedTuple):
    """Answer: list[TopicResult] in the order asked; what is asked for twice is refused, once."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False
    charge: ChargePartitions = free


class TopicResult(NamedTuple):
    """What became of one topic. `configs` are the overrides it now has (empty where refused)."""

    name: str | None
    topic_id: bytes = ZERO_UUID
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = NO_CONFIGS


class DeleteTopics(NamedTuple):
    """Topics by name (id zero) or by id (name None). Answer: list[TopicResult] as of CreateTopics."""

    topics: tuple[tuple[str | None, bytes], ...]
    charge: ChargePartitions = free


class NewPartitions(NamedTuple):
    """Grow a topic to `total` partitions; `assignments` has the brokers of each new one, or is None to place them."""

    name: str
    total: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitions(NamedTuple):
    """Answer: list[TopicResult] as of CreateTopics."""

    topics: tuple[NewPartitions, ...]
    validate_only: bool = False
    charge: ChargePartitions = free


class ReplaceConfigs(NamedTuple):
    """Settings of one resource: exactly these, all others are reset (AlterConfigs)."""

    resource_type: int
    resource_name: str
    configs: tuple[tuple[str, str | None], ...]


class AlterConfigs(NamedTuple):
    """Answer: list[ConfigResult] in the order asked. One resource's changes are made together or not at all."""

    resources: tuple[ReplaceConfigs, ...]
    validate_only: bool = False
    host: str | None = None
    """The address of who asks, who is not to be shut out by it."""


class ChangeConfigs(NamedTuple):
    """Changes of one resource's settings: (name, AlterOp code, value)."""

    resource_type: int
    resource_name: str
    changes: tuple[tuple[str, int, str | None], ...]


class IncrementalAlterConfigs(NamedTuple):
    """Answer: list[ConfigResult] in the order asked. One resource's changes are made together or not at all."""

    resources: tuple[ChangeConfigs, ...]
    validate_only: bool = False
    host: str | None = None
    """The address of who asks, who is not to be shut out by it."""


class ConfigResult(NamedTuple):
    """What became of one resource."""

    resource_type: int
    resource_name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class AllocateProducerIds(NamedTuple):
    """A block of producer ids nobody else has (KIP-730). Answer: ProducerIdBlock."""

    node_id: int
    broker_epoch: int


class ProposedIsr(NamedTuple):
    """Another in-sync set for a partition: node id and broker epoch (or -1) of each member. The epochs are those that
    the leader knows."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    leader_recovery_state: int = 0


class AlterPartition(NamedTuple):
    """The leader's proposals (KIP-497). Answer: list[IsrResult] in the order asked."""

    node_id: int
    broker_epoch: int
    proposals: tuple[ProposedIsr, ...]


class IsrResult(NamedTuple):
    """What became of one proposal; without an error, the partition as it now is."""

    topic_id: bytes
    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    leader: int = 0
    leader_epoch: int = 0
    isr: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    partition_epoch: int = 0


class ElectionType(IntEnum):
    """What ElectLeaders asks for (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectLeaders(NamedTuple):
    """Elect leaders of (topic, partition indexes), or of all partitions. Answer: list[PartitionResult] in the order
    asked, by topic."""

    election_type: int
    partitions: tuple[tuple[str, tuple[int, ...]], ...] | None = None


class PartitionResult(NamedTuple):
    """What became of one partition."""

    topic: str
    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class Reassignment(NamedTuple):
    """The replicas a partition shall have, preferred leader first; None calls off what is under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class AlterReassignments(NamedTuple):
    """Answer: list[PartitionResult] in the order asked."""

    reassignments: tuple[Reassignment, ...]
    allow_replication_factor_change: bool = True


class ListReassignments(NamedTuple):
    """Those under way among (topic, partition indexes), or all. Answer: list[OngoingReassignment]."""

    partitions: tuple[tuple[str, tuple[int, ...]], ...] | None = None


class OngoingReassignment(NamedTuple):
    """A partition on the move."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class QuotaChange(NamedTuple):
    """Quotas of one entity, which is (type, name) parts: a name of None is the default. A value of None removes."""

    entity: tuple[tuple[str, str | None], ...]
    ops: tuple[tuple[str, float | None], ...]


class AlterClientQuotas(NamedTuple):
    """Answer: list[QuotaResult], one for each entity. One entity's changes are made together or not at all."""

    changes: tuple[QuotaChange, ...]
    validate_only: bool = False


class QuotaResult(NamedTuple):
    """What became of one entity."""

    entity: tuple[tuple[str, str | None], ...]
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class UpgradeType(IntEnum):
    """How far UpdateFeatures may go (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """Another finalized level; 0 takes the feature away."""

    name: str
    level: int
    upgrade_type: int = UpgradeType.UPGRADE


class UpdateFeatures(NamedTuple):
    """All together or none. Answer: None. Raises KafkaError naming the first feature that cannot change."""

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
    | AllocateProducerIds
)
