"""ListGroups (16): list the groups that this broker coordinates.

v3 is flexible; v4 has a filter by state (KIP-518), and v5 a filter by type (KIP-848).
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
    """Return the groups that match the filters. An empty filter matches every group."""
    command = ListGroups(
        frozenset(state.lower() for state in request.states_filter),
        frozenset(each.lower() for each in request.types_filter),
    )
    try:
        return Response(groups=await broker.coordinators.groups.list(command, broker.config.request_timeout_ms))
    except KafkaError as refusal:
        return Response(error_code=refusal.code)
