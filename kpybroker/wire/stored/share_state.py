"""The records of `__share_group_state`: snapshots of a share partition's state, and updates of it (KIP-932)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int8, Int16, Int32, Int64, Uuid


@part
class StateBatch:
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


@message("0", key=0)
class ShareSnapshotKey:
    group_id: str = ""
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


@message("0", flexible=0)
class ShareSnapshotValue:
    snapshot_epoch: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Int32 = field(default=-1, tag=0)
    create_timestamp: Int64 = 0
    write_timestamp: Int64 = 0
    state_batches: list[StateBatch] = []


@message("0", key=1)
class ShareUpdateKey:
    group_id: str = ""
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


@message("0", flexible=0)
class ShareUpdateValue:
    snapshot_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Int32 = field(default=-1, tag=0)
    state_batches: list[StateBatch] = []
