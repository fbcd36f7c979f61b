"""What the controller can be asked. Commands and answers are plain values: no message classes of the wire, no I/O.

A command is refused as a whole by a KafkaError; what is refused per item has its code in the item's result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from kpybroker.errors import ErrorCode
from kpybroker.machine import Tick

ZERO_UUID = bytes(16)
NO_CONFIGS: Mapping[str, str] = MappingProxyType({})


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


class BrokerEndpoint(NamedTuple):
    """Where a broker can be reached. `security_protocol` by Kafka's codes: 0 is PLAINTEXT."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


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


class BrokerHeartbeat(NamedTuple):
    """A registered broker wants to be fenced, unfenced, or to stop in good order. Answer: BrokerState."""

    node_id: int
    broker_epoch: int
    want_fence: bool = False
    want_shut_down: bool = False


class BrokerState(NamedTuple):
    """How the controller sees a broker."""

    fenced: bool
    should_shut_down: bool


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


class NewPartitions(NamedTuple):
    """Grow a topic to `total` partitions; `assignments` has the brokers of each new one, or is None to place them."""

    name: str
    total: int
    assignments: tuple[tuple[int, ...], ...] | None = None


class CreatePartitions(NamedTuple):
    """Answer: list[TopicResult] as of CreateTopics."""

    topics: tuple[NewPartitions, ...]
    validate_only: bool = False


class ReplaceConfigs(NamedTuple):
    """Settings of one resource: exactly these, all others are reset (AlterConfigs)."""

    resource_type: int
    resource_name: str
    configs: tuple[tuple[str, str | None], ...]


class AlterConfigs(NamedTuple):
    """Answer: list[ConfigResult] in the order asked. One resource's changes are made together or not at all."""

    resources: tuple[ReplaceConfigs, ...]
    validate_only: bool = False


class ChangeConfigs(NamedTuple):
    """Changes of one resource's settings: (name, AlterOp code, value)."""

    resource_type: int
    resource_name: str
    changes: tuple[tuple[str, int, str | None], ...]


class IncrementalAlterConfigs(NamedTuple):
    """Answer: list[ConfigResult] in the order asked. One resource's changes are made together or not at all."""

    resources: tuple[ChangeConfigs, ...]
    validate_only: bool = False


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


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Producer ids `first` to `first + count - 1`."""

    first: int
    count: int


Command = (
    Tick
    | RegisterBroker
    | BrokerHeartbeat
    | CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | IncrementalAlterConfigs
    | AllocateProducerIds
)
