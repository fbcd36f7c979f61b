"""Requests that make or delete partitions, and what their clients may still do of it (KIP-599)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import CONTROLLER, Call
from kpybroker.quotas.clients import Mutations

if TYPE_CHECKING:
    from kpybroker.broker import Broker


def mutations(broker: Broker, call: Call, api: str) -> Mutations:
    """The quota of whoever calls; nodes of the cluster, who come to the controller's listener, have none."""
    if call.side == CONTROLLER:
        return Mutations(broker.quotas.now_ms, None, None, strict=True)
    return broker.quotas.mutations(api, call.version, call.client_id)
