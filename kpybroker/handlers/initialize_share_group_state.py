"""InitializeShareGroupState (83): initialize the state of share partitions, and replace earlier state (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.serving.shares.state_rows import answer_rows, refused_rows
from kpybroker.shares.commands import Initialize
from kpybroker.shares.keys import ShareKey
from kpybroker.wire.rpc.initialize_share_group_state import InitializeStateResult, PartitionResult, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return a row for each partition once the new state is durable."""
    coordinator, timeout_ms = broker.coordinators.shares, broker.config.share_coordinator_write_timeout_ms

    async def do(key: ShareKey, asked: Any) -> None:
        await coordinator.initialize(Initialize(key, asked.state_epoch, asked.start_offset), timeout_ms)

    return Response(results=await answer_rows(request, do, InitializeStateResult, PartitionResult))


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition."""
    return Response(results=refused_rows(request, refusal, InitializeStateResult, PartitionResult))
