"""WriteShareGroupState (85): change the state of share partitions (KIP-932). v1 contains delivery_complete_count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.serving.shares.state_rows import answer_rows, refused_rows
from kpybroker.shares.batches import StateBatch
from kpybroker.shares.commands import Write
from kpybroker.shares.keys import ShareKey
from kpybroker.wire.rpc.write_share_group_state import PartitionResult, Request, Response, WriteStateResult

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return a row for each partition once the change is durable."""
    coordinator, timeout_ms = broker.coordinators.shares, broker.config.share_coordinator_write_timeout_ms

    async def do(key: ShareKey, asked: Any) -> None:
        batches = [
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in asked.state_batches
        ]
        write = Write(
            key, asked.state_epoch, asked.leader_epoch, asked.start_offset, asked.delivery_complete_count, batches
        )
        await coordinator.write(write, timeout_ms)

    return Response(results=await answer_rows(request, do, WriteStateResult, PartitionResult))


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition."""
    return Response(results=refused_rows(request, refusal, WriteStateResult, PartitionResult))
