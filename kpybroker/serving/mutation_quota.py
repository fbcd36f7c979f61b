"""The controller mutation quota, for requests that create or delete partitions (KIP-599)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import CONTROLLER, Call
from kpybroker.quotas.clients import Mutations
from kpybroker.wire.api import by_key

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def mutations(broker: Broker, call: Call) -> Mutations:
    """The caller's quota. Nodes of the cluster, which send such requests to a controller listener, have no quota."""
    if call.side == CONTROLLER:
        return Mutations(broker.quotas.now_ms, None, None, strict=True)
    return broker.quotas.mutations(by_key[call.api_key], call.version, call.client_id, call.principal.name)
