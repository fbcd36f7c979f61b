"""Requests about share groups for the matrix of refusals (`authorization_matrix.py`)."""

from __future__ import annotations

from typing import Any

from kpybroker.security.authorizer import Operation
from kpybroker.wire.rpc import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    delete_share_group_state,
    describe_share_group_offsets,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    write_share_group_state,
)
from oracle.authorization import OTHER, C, Case, G, State, T

GROUP = "queue"
CLUSTER_ACTION = ((Operation.CLUSTER_ACTION, C),)
WAIT_MS = 5000


def _beat(*names: str) -> share_group_heartbeat.Request:
    return share_group_heartbeat.Request(
        group_id=GROUP, member_id="nobody", member_epoch=3, subscribed_topic_names=list(names) or None
    )


def _fetched(state: State) -> share_fetch.Request:
    topics = [
        share_fetch.FetchTopic(topic_id=state.ids[name], partitions=[share_fetch.FetchPartition()])
        for name in ("t", OTHER)
    ]
    return share_fetch.Request(
        group_id=GROUP,
        member_id="m",
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=1 << 20,
        max_records=5,
        batch_size=5,
        topics=topics,
    )


def _acknowledged(state: State) -> share_acknowledge.Request:
    row = share_acknowledge.AcknowledgePartition(
        acknowledgement_batches=[share_acknowledge.AcknowledgementBatch(acknowledge_types=[1])]
    )
    topics = [share_acknowledge.AcknowledgeTopic(topic_id=state.ids["t"], partitions=[row])]
    return share_acknowledge.Request(group_id=GROUP, member_id="m", share_session_epoch=1, topics=topics)


def _initialized(state: State) -> initialize_share_group_state.Request:
    rpc = initialize_share_group_state
    row = rpc.PartitionData(partition=0, state_epoch=1, start_offset=0)
    return rpc.Request(group_id="state", topics=[rpc.InitializeStateData(topic_id=state.ids["t"], partitions=[row])])


def _read(state: State) -> read_share_group_state.Request:
    rpc = read_share_group_state
    topics = [rpc.ReadStateData(topic_id=state.ids["t"], partitions=[rpc.PartitionData()])]
    return rpc.Request(group_id="none", topics=topics)


def _written(state: State) -> write_share_group_state.Request:
    rpc = write_share_group_state
    topics = [rpc.WriteStateData(topic_id=state.ids["t"], partitions=[rpc.PartitionData()])]
    return rpc.Request(group_id="none", topics=topics)


def _deleted(state: State) -> delete_share_group_state.Request:
    rpc = delete_share_group_state
    topics = [rpc.DeleteStateData(topic_id=state.ids["t"], partitions=[rpc.PartitionData()])]
    return rpc.Request(group_id="none", topics=topics)


def _summed_up(state: State) -> read_share_group_state_summary.Request:
    rpc = read_share_group_state_summary
    topics = [rpc.ReadStateSummaryData(topic_id=state.ids["t"], partitions=[rpc.PartitionData()])]
    return rpc.Request(group_id="none", topics=topics)


def _described_offsets(_: State) -> describe_share_group_offsets.Request:
    rpc = describe_share_group_offsets
    topics = [rpc.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=[0]) for name in ("t", OTHER)]
    groups = [rpc.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics) for group in (GROUP, "none")]
    return rpc.Request(groups=groups)


def _altered(_: State) -> alter_share_group_offsets.Request:
    rpc = alter_share_group_offsets
    topics = [
        rpc.AlterShareGroupOffsetsRequestTopic(
            topic_name=name, partitions=[rpc.AlterShareGroupOffsetsRequestPartition(partition_index=0)]
        )
        for name in ("t", OTHER)
    ]
    return rpc.Request(group_id=GROUP, topics=topics)


def _deleted_offsets(_: State) -> delete_share_group_offsets.Request:
    rpc = delete_share_group_offsets
    topics = [rpc.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in ("t", OTHER)]
    return rpc.Request(group_id=GROUP, topics=topics)


def _state(api: str, make: Any, *versions: int) -> tuple[Case, ...]:
    return tuple(Case(api, make, CLUSTER_ACTION, version) for version in versions)


SHARES = (
    Case("ShareGroupHeartbeat", lambda _: _beat(), ((Operation.READ, G, GROUP),)),
    Case(
        "ShareGroupHeartbeat",
        lambda _: _beat("t", OTHER),
        ((Operation.READ, G, GROUP), (Operation.DESCRIBE, T)),
        what="that subscribes",
    ),
    Case(
        "ShareGroupDescribe",
        lambda _: share_group_describe.Request(group_ids=[GROUP, "none"]),
        ((Operation.DESCRIBE, G, GROUP),),
    ),
    *(Case("ShareFetch", _fetched, ((Operation.READ, G, GROUP), (Operation.READ, T)), version) for version in (1, 2)),
    *(Case("ShareAcknowledge", _acknowledged, ((Operation.READ, G, GROUP),), version) for version in (1, 2)),
    *_state("InitializeShareGroupState", _initialized, 0),
    *_state("ReadShareGroupState", _read, 0),
    *_state("WriteShareGroupState", _written, 0, 1),
    *_state("DeleteShareGroupState", _deleted, 0),
    *_state("ReadShareGroupStateSummary", _summed_up, 0, 1),
    *(
        Case(
            "DescribeShareGroupOffsets",
            _described_offsets,
            ((Operation.DESCRIBE, G, GROUP), (Operation.DESCRIBE, T)),
            version,
        )
        for version in (0, 1)
    ),
    Case("AlterShareGroupOffsets", _altered, ((Operation.READ, G, GROUP), (Operation.READ, T))),
    Case(
        "DeleteShareGroupOffsets",
        _deleted_offsets,
        ((Operation.DELETE, G, GROUP), (Operation.READ, T)),
        before=(("AlterShareGroupOffsets", 0, _altered),),
    ),
)
"""Requests of clients and of brokers."""
