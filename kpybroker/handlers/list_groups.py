"""ListGroups (16): the groups that this broker coordinates.

v3 flexible; v4 filters by state (KIP-518); v5 by type (KIP-848).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.groups.ground.commands import ListGroups
from kpybroker.wire.rpc.list_groups import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """An empty filter matches every group."""
    command = ListGroups(
        frozenset(state.lower() for state in request.states_filter),
        frozenset(each.lower() for each in request.types_filter),
    )
    try:
        return Response(groups=await broker.coordinators.groups.list(command, broker.config.request_timeout_ms))
    except KafkaError as refusal:
        return Response(error_code=refusal.code)
