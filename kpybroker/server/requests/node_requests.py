"""Which requests nodes of the cluster send, by what the requests say: there is no authentication."""

from __future__ import annotations

from typing import Any

from kpybroker.wire.api import Api, Audience


def is_of_a_node(api: Api, version: int, request: Any) -> bool:
    """A request of an API for brokers, or one in which a broker says who it is."""
    return api.audience is Audience.BROKER or is_of_a_broker(api, version, request)


def is_of_a_broker(api: Api, version: int, request: Any) -> bool:
    """What brokers ask of one another over the listeners of clients, with an API for clients."""
    if api.brokers_from is not None:
        return version >= api.brokers_from
    state = getattr(request, "replica_state", None)
    return getattr(request, "replica_id", -1) >= 0 or (state is not None and state.replica_id >= 0)
