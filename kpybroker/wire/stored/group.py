"""The records of `__consumer_offsets` about offsets and classic groups. Other types of groups have separate modules.

The prefix of a key is the record type, and the prefix of a value is its version; see `kpybroker.wire.stored.prefixed`.
"""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int32, Int64, Uuid


@message("0", key=0)
class LegacyOffsetCommitKey:
    group: str = ""
    topic: str = ""
    partition: Int32 = 0


@message("0")
class LegacyOffsetCommitValue:
    offset: Int64 = 0
    metadata: str = ""
    commit_timestamp: Int64 = 0


@message("0", key=1)
class OffsetCommitKey:
    group: str = ""
    topic: str = ""
    partition: Int32 = 0


@message("0-4", flexible=4)
class OffsetCommitValue:
    offset: Int64 = 0
    leader_epoch: Int32 = field("3+", default=-1)
    metadata: str = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Int64 = field("1", default=-1)
    topic_id: Uuid = field("4+", tag=0)


@message("0", key=2)
class GroupMetadataKey:
    group: str = ""


@part
class MemberMetadata:
    member_id: str = ""
    group_instance_id: str | None = field("3+")
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: Int32 = field("1+", default=-1)
    session_timeout: Int32 = 0
    subscription: bytes = b""
    assignment: bytes = b""


@message("0-4", flexible=4)
class GroupMetadataValue:
    protocol_type: str = ""
    generation: Int32 = 0
    protocol: str | None = ""
    leader: str | None = ""
    current_state_timestamp: Int64 = field("2+", default=-1)
    members: list[MemberMetadata] = []
