"""The commands of the group machine of one `__consumer_offsets` partition, with their errors.

An error that concerns the whole command is raised by `Runner.ask` as KafkaError; the four calls of the rebalance
protocol answer with the API's own Response, whose error code may come with a member id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kpybroker.errors import ErrorCode
from kpybroker.machine.contract import Tick
from kpybroker.wire.records.markers import Marker
from kpybroker.wire.rpc import (
    consumer_group_heartbeat,
    join_group,
    leave_group,
    share_group_heartbeat,
    streams_group_heartbeat,
    sync_group,
)

MayDescribe = Callable[[str], bool]
"""Whether the sender of a heartbeat may describe a topic."""


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup; answered with join_group.Response, possibly much later."""

    request: join_group.Request
    client_id: str
    client_host: str
    knows_member_id_first: bool
    """The client understands MEMBER_ID_REQUIRED (v4, KIP-394)."""
    may_skip_assignment: bool
    """The client understands skip_assignment (v9, KIP-814)."""


@dataclass(frozen=True, slots=True)
class Sync:
    """SyncGroup; answered with sync_group.Response when the leader's assignment has committed."""

    request: sync_group.Request


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Answered with an ErrorCode."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Answered with one ErrorCode for each member, in order."""

    group_id: str
    members: Sequence[leave_group.MemberIdentity]


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat (KIP-848); answered with consumer_group_heartbeat.Response.

    Raises: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID,
    FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED.
    """

    request: consumer_group_heartbeat.Request
    client_id: str
    client_host: str
    may_describe: MayDescribe | None = None
    """For regular expressions; None without an authorizer: every topic."""


@dataclass(frozen=True, slots=True)
class DescribeConsumerGroup:
    """Answered with consumer_group_describe.DescribedGroup. Raises GROUP_ID_NOT_FOUND."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ShareHeartbeat:
    """ShareGroupHeartbeat (KIP-932); answered with share_group_heartbeat.Response.

    Raises: INVALID_REQUEST, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, GROUP_MAX_SIZE_REACHED.
    """

    request: share_group_heartbeat.Request
    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True)
class DescribeShareGroup:
    """Answered with share_group_describe.DescribedGroup. Raises GROUP_ID_NOT_FOUND."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ListSharePartitions:
    """Answered with a list of the initialized share partitions, (topic id, partition); empty for an unknown group."""

    group_id: str


@dataclass(frozen=True, slots=True)
class AlterShareOffsets:
    """Set the start offsets of share partitions of a topic, in a group without members; creates the group if needed.

    Answered with the ErrorCode of the topic once the share coordinator has stored them. Raises: GROUP_ID_NOT_FOUND,
    NON_EMPTY_GROUP, GROUP_MAX_SIZE_REACHED.
    """

    group_id: str
    topic_id: bytes
    starts: Mapping[int, int]
    """partition -> start offset"""


@dataclass(frozen=True, slots=True)
class DeleteShareOffsets:
    """Delete the share partitions of a topic, in a group without members. Without a topic id, only check the group.

    Answered with the ErrorCode of the topic once the share coordinator has deleted them; UNKNOWN_TOPIC_OR_PARTITION if
    the group has none. Raises: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    """

    group_id: str
    topic_id: bytes | None


@dataclass(frozen=True, slots=True)
class AwaitErrands:
    """Answered with the errands to run at share coordinators (`share/errands.py`), as soon as there are any. After an
    empty answer, send the command again."""


@dataclass(frozen=True, slots=True)
class ErrandDone:
    """A share coordinator has executed an errand, or refused it with this code. Answered with None."""

    errand: Any
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class StreamsHeartbeat:
    """StreamsGroupHeartbeat (KIP-1071); answered with a StreamsBeat. The caller has checked what does not depend on the
    group.

    Raises: INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH,
    GROUP_MAX_SIZE_REACHED.
    """

    request: streams_group_heartbeat.Request
    client_id: str
    client_host: str


class InternalTopic(NamedTuple):
    """A repartition or changelog topic of a streams application. A replication factor of 0 or -1 means the default."""

    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


class StreamsBeat(NamedTuple):
    """The answer to a StreamsHeartbeat."""

    response: streams_group_heartbeat.Response
    missing: Mapping[str, InternalTopic]
    """The internal topics to create, by name."""


@dataclass(frozen=True, slots=True)
class DescribeStreamsGroup:
    """Answered with streams_group_describe.DescribedGroup. Raises GROUP_ID_NOT_FOUND."""

    group_id: str


@dataclass(frozen=True, slots=True)
class PartitionCommit:
    """One offset to commit."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """OffsetCommit and TxnOffsetCommit; answered with an ErrorCode for each partition, in order.

    The caller has already verified the transaction. Raises: GROUP_ID_NOT_FOUND (ILLEGAL_GENERATION if the client does
    not know that code), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS,
    STALE_MEMBER_EPOCH, UNSUPPORTED_VERSION.
    """

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    retention_ms: int
    topics: Sequence[tuple[str, bytes, Sequence[PartitionCommit]]]
    """(name, id, commits)"""
    knows_group_id_not_found: bool
    transaction: tuple[int, int] | None = None
    """(producer id, epoch): the offsets take effect when that transaction commits."""


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """A transaction ends: the offsets that its producer committed in it take effect, or are dropped. Answered with
    None.

    The caller has already checked that the marker may be written.
    """

    marker: Marker


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """OffsetFetch; answered with a list of (topic, [(partition, Committed or None)]), or, if `topics` is None, with all
    offsets of the group.

    With `require_stable`, UNSTABLE_OFFSET_COMMIT replaces offsets that an open transaction may change. An unknown group
    has no offsets, which is not an error. For a request by a member (KIP-848), raises: UNKNOWN_MEMBER_ID,
    STALE_MEMBER_EPOCH, ILLEGAL_GENERATION.
    """

    group_id: str
    topics: Sequence[tuple[str, Sequence[int]]] | None
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """OffsetDelete; answered with the topics that the group is subscribed to, whose offsets stay.

    Raises: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    """

    group_id: str
    topics: Sequence[tuple[str, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    """Answered with describe_groups.DescribedGroup. Raises GROUP_ID_NOT_FOUND."""

    group_id: str


@dataclass(frozen=True, slots=True)
class ListGroups:
    """Answered with a list of list_groups.ListedGroup. Empty filters match everything; filters ignore case."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Delete a group and its offsets; answered with True while there is more to do.

    Raises: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    """

    group_id: str


@dataclass(frozen=True, slots=True)
class DropTopics:
    """Delete all offsets of deleted topics; answered with True while there is more to do.

    Offsets of a topic that was recreated under the same name stay: they have its new id.
    """

    topics: Mapping[str, bytes]
    """name -> the id that the topic had"""


Command = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | ConsumerHeartbeat
    | DescribeConsumerGroup
    | ShareHeartbeat
    | DescribeShareGroup
    | ListSharePartitions
    | AlterShareOffsets
    | DeleteShareOffsets
    | AwaitErrands
    | StreamsHeartbeat
    | DescribeStreamsGroup
    | ErrandDone
    | CommitOffsets
    | EndTransaction
    | FetchOffsets
    | DeleteOffsets
    | DescribeGroup
    | ListGroups
    | DeleteGroup
    | DropTopics
    | Tick
)
