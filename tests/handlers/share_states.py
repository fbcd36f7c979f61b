"""Helpers that send the requests of brokers to the share coordinator, for tests of its handlers."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.wire.rpc import (
    delete_share_group_state,
    find_coordinator,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)

SHARE = 2


async def coordinated(peer: Peer) -> None:
    """Create `__share_group_state`, by requesting the coordinator of a share partition."""
    key = "g:AAAAAAAAAAAAAAAAAAAAAQ:0"
    told = await peer.ask("FindCoordinator", find_coordinator.Request(key_type=SHARE, coordinator_keys=[key]))
    assert told.coordinators[0].error_code == 0, told


async def _asked(peer: Peer, api: str, request: Any, version: int | None = None) -> list[Any]:
    told = await peer.ask(api, request, version=version)
    return [row for topic in told.results for row in topic.partitions]


async def initialize(peer: Peer, topic_id: bytes, epoch: int, start: int, *indexes: int) -> list[Any]:
    rpc = initialize_share_group_state
    rows = [rpc.PartitionData(partition=index, state_epoch=epoch, start_offset=start) for index in indexes or (0,)]
    topics = [rpc.InitializeStateData(topic_id=topic_id, partitions=rows)]
    return await _asked(peer, "InitializeShareGroupState", rpc.Request(group_id="g", topics=topics))


async def read(peer: Peer, topic_id: bytes, epoch: int = 0, *indexes: int) -> list[Any]:
    rpc = read_share_group_state
    rows = [rpc.PartitionData(partition=index, leader_epoch=epoch) for index in indexes or (0,)]
    topics = [rpc.ReadStateData(topic_id=topic_id, partitions=rows)]
    return await _asked(peer, "ReadShareGroupState", rpc.Request(group_id="g", topics=topics))


async def write(
    peer: Peer,
    topic_id: bytes,
    of: tuple[int, int, int],
    *batches: tuple[int, int, int, int],
    complete: int = -1,
    version: int = 1,
) -> list[Any]:
    """Write the state of partition 0. Returns the rows of the response.

    of: state epoch, leader epoch, start offset. batches: first offset, last offset, state, delivery count.
    """
    rpc = write_share_group_state
    row = rpc.PartitionData(
        partition=0,
        state_epoch=of[0],
        leader_epoch=of[1],
        start_offset=of[2],
        delivery_complete_count=complete,
        state_batches=[
            rpc.StateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
            for first, last, state, count in batches
        ],
    )
    topics = [rpc.WriteStateData(topic_id=topic_id, partitions=[row])]
    return await _asked(peer, "WriteShareGroupState", rpc.Request(group_id="g", topics=topics), version)


async def summary(peer: Peer, topic_id: bytes, *indexes: int, version: int = 1) -> list[Any]:
    rpc = read_share_group_state_summary
    rows = [rpc.PartitionData(partition=index, leader_epoch=0) for index in indexes or (0,)]
    topics = [rpc.ReadStateSummaryData(topic_id=topic_id, partitions=rows)]
    return await _asked(peer, "ReadShareGroupStateSummary", rpc.Request(group_id="g", topics=topics), version)


async def delete(peer: Peer, topic_id: bytes, *indexes: int) -> list[Any]:
    rpc = delete_share_group_state
    rows = [rpc.PartitionData(partition=index) for index in indexes or (0,)]
    topics = [rpc.DeleteStateData(topic_id=topic_id, partitions=rows)]
    return await _asked(peer, "DeleteShareGroupState", rpc.Request(group_id="g", topics=topics))
