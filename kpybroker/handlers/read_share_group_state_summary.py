"""ReadShareGroupStateSummary (87): return the start offsets of share partitions (KIP-932).

v1 also returns delivery_complete_count. For a share partition that was never initialized, the start offset is -1 and
there is no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.serving.shares.state_rows import answer_rows, refused_rows
from kpybroker.shares.commands import ReadSummary
from kpybroker.shares.keys import ShareKey
from kpybroker.shares.state import UNINITIALIZED
from kpybroker.wire.rpc.read_share_group_state_summary import PartitionResult, ReadStateSummaryResult, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return a row for each partition once its state is durable."""
    coordinator, timeout_ms = broker.coordinators.shares, broker.config.share_coordinator_write_timeout_ms

    async def do(key: ShareKey, asked: Any) -> dict[str, Any]:
        state = await coordinator.read_summary(ReadSummary(key), timeout_ms)
        if state is None:
            return {"start_offset": UNINITIALIZED}
        return {
            "state_epoch": state.state_epoch,
            "leader_epoch": state.leader_epoch,
            "start_offset": state.start,
            "delivery_complete_count": state.complete_count,
        }

    return Response(results=await answer_rows(request, do, ReadStateSummaryResult, PartitionResult))


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition."""
    return Response(results=refused_rows(request, refusal, ReadStateSummaryResult, PartitionResult))
