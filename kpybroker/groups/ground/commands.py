"""The commands of the group machine of one `__consumer_offsets` partition, with their results and errors.

`Runner.ask` raises an error that concerns the whole command as KafkaError. The result of the four requests of the
rebalance protocol is the API's own Response, because it may have both an error code and a member id.
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
"""Returns whether the sender of a heartbeat may describe a topic."""


class Join(NamedTuple):
    """JoinGroup. The result is a join_group.Response, possibly much later."""

    request: join_group.Request
    client_id: str
    client_host: str
    knows_member_id_first: bool
    """Whether the client supports MEMBER_ID_REQUIRED (v4, KIP-394)."""
    may_skip_assignment: bool
    """Whether the client supports skip_assignment (v9, KIP-814)."""


class Sync(NamedTuple):
    """SyncGroup. The result is a sync_group.Response once the leader's assignment has committed."""

    request: sync_group.Request


class Heartbeat(NamedTuple):
    """Heartbeat. The result is an ErrorCode."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int


class Leave(NamedTuple):
    """LeaveGroup. The result is a list with one ErrorCode for each member, in order."""

    group_id: str
    members: Sequence[leave_group.MemberIdentity]


class ConsumerHeartbeat(NamedTuple):
    """ConsumerGroupHeartbeat (KIP-848). The result is a consumer_group_heartbeat.Response.

    Raises: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID,
    FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED.
    """

    request: consumer_group_heartbeat.Request
    client_id: str
    client_host: str
    may_describe: MayDescribe | None = None
    """For regular expressions. None without an authorizer, which allows every topic."""


class DescribeConsumerGroup(NamedTuple):
    """ConsumerGroupDescribe. The result is a consumer_group_describe.DescribedGroup. Raises GROUP_ID_NOT_FOUND."""

    group_id: str


class ShareHeartbeat(NamedTuple):
    """ShareGroupHeartbeat (KIP-932). The result is a share_group_heartbeat.Response.

    Raises: INVALID_REQUEST, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, GROUP_MAX_SIZE_REACHED.
    """

    request: share_group_heartbeat.Request
    client_id: str
    client_host: str


class DescribeShareGroup(NamedTuple):
    """ShareGroupDescribe. The result is a share_group_describe.DescribedGroup. Raises GROUP_ID_NOT_FOUND."""

    group_id: str


class ListSharePartitions(NamedTuple):
    """List the initialized share partitions as (topic id, partition). The list of an unknown group is empty."""

    group_id: str


class AlterShareOffsets(NamedTuple):
    """Set the start offsets of share partitions of a topic, in a group without members; creates the group if needed.

    The result is the ErrorCode of the topic, once the share coordinator has stored the offsets. Raises:
    GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, GROUP_MAX_SIZE_REACHED.
    """

    group_id: str
    topic_id: bytes
    starts: Mapping[int, int]
    """The start offsets by partition."""


class DeleteShareOffsets(NamedTuple):
    """Delete the share partitions of a topic, in a group without members. Without a topic id, only check the group.

    The result is the ErrorCode of the topic, once the share coordinator has deleted the share partitions; it is
    UNKNOWN_TOPIC_OR_PARTITION if the group has none. Raises: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    """

    group_id: str
    topic_id: bytes | None


@dataclass(frozen=True, slots=True)
class AwaitErrands:
    """Wait for errands: requests that must be sent to share coordinators (`share/errands.py`). The result is a list of
    errands. After an empty list, send the command again."""


class ErrandDone(NamedTuple):
    """Report that a share coordinator has executed an errand, or has refused it with this code. The result is None."""

    errand: Any
    code: ErrorCode


class StreamsHeartbeat(NamedTuple):
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


class DescribeStreamsGroup(NamedTuple):
    """Answered with streams_group_describe.DescribedGroup. Raises GROUP_ID_NOT_FOUND."""

    group_id: str


class PartitionCommit(NamedTuple):
    """One offset to commit."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommitOffsets(NamedTuple):
    """OffsetCommit and TxnOffsetCommit. The result is a list with an ErrorCode for each partition, in order.

    The caller must have verified the transaction. Raises: GROUP_ID_NOT_FOUND (ILLEGAL_GENERATION if the client does not
    support that code), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS,
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
    """(producer id, epoch) of the transaction that must commit before the offsets take effect; else None."""


class EndTransaction(NamedTuple):
    """End a transaction: the offsets that its producer committed in it take effect or are dropped. The result is None.

    The caller must have checked that the marker may be written.
    """

    marker: Marker


class FetchOffsets(NamedTuple):
    """OffsetFetch. The result is a list of (topic, [(partition, Committed or None)]), which has all offsets of the
    group if `topics` is None.

    With `require_stable`, UNSTABLE_OFFSET_COMMIT replaces offsets that an open transaction may change. An unknown group
    has no offsets, which is not an error. If a member sends the request (KIP-848), raises: UNKNOWN_MEMBER_ID,
    STALE_MEMBER_EPOCH, ILLEGAL_GENERATION.
    """

    group_id: str
    topics: Sequence[tuple[str, Sequence[int]]] | None
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


class DeleteOffsets(NamedTuple):
    """OffsetDelete. The result is the topics to which the group subscribes; their offsets are not deleted.

    Raises: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    """

    group_id: str
    topics: Sequence[tuple[str, Sequence[int]]]


class DescribeGroup(NamedTuple):
    """DescribeGroups. The result is a describe_groups.DescribedGroup. Raises GROUP_ID_NOT_FOUND."""

    group_id: str


class ListGroups(NamedTuple):
    """ListGroups. The result is a list of list_groups.ListedGroup. Empty filters match everything; filters ignore
    case."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


class DeleteGroup(NamedTuple):
    """Delete a group and its offsets. The result is True if the command must be sent again to delete the rest.

    Raises: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
    """

    group_id: str


class DropTopics(NamedTuple):
    """Delete all offsets of deleted topics. The result is True if the command must be sent again to delete the rest.

    Offsets of a topic that was recreated with the same name stay, because they have its new id.
    """

    topics: Mapping[str, bytes]
    """The ids of the deleted topics, by name."""


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
