"""Recognises requests of the cluster's nodes by their content, because nodes may connect without authentication."""

from __future__ import annotations

from typing import Any

from kpybroker.wire.api import Api, Audience


def is_of_a_node(api: Api, version: int, request: Any) -> bool:
    """Whether only brokers send this API, or the request has the id of a broker."""
    return api.audience is Audience.BROKER or is_of_a_broker(api, version, request)


def is_of_a_broker(api: Api, version: int, request: Any) -> bool:
    """Whether a broker sent this request of an API for clients."""
    if api.brokers_from is not None:
        return version >= api.brokers_from
    state = getattr(request, "replica_state", None)
    return getattr(request, "replica_id", -1) >= 0 or (state is not None and state.replica_id >= 0)
