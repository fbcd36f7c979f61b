"""ReadShareGroupState (84): return the state of share partitions to the leader of the partitions (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.serving.shares.state_rows import answer_rows, refused_rows
from kpybroker.shares.commands import Read
from kpybroker.shares.keys import ShareKey
from kpybroker.wire.rpc.read_share_group_state import PartitionResult, ReadStateResult, Request, Response, StateBatch

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return a row for each partition once the leader epoch is durable."""
    coordinator, timeout_ms = broker.coordinators.shares, broker.config.share_coordinator_write_timeout_ms

    async def do(key: ShareKey, asked: Any) -> dict[str, Any]:
        state = await coordinator.read(Read(key, asked.leader_epoch), timeout_ms)
        batches = [
            StateBatch(
                first_offset=each.first,
                last_offset=each.last,
                delivery_state=each.state,
                delivery_count=each.deliveries,
            )
            for each in state.batches
        ]
        return {"state_epoch": state.state_epoch, "start_offset": state.start, "state_batches": batches}

    return Response(results=await answer_rows(request, do, ReadStateResult, PartitionResult))


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition."""
    return Response(results=refused_rows(request, refusal, ReadStateResult, PartitionResult))
