"""Checks whether a caller may send requests about delegation tokens (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def may_ask(broker: Broker, call: Call) -> bool:
    """Whether the caller has logged in, but not with a delegation token.

    A forwarded request has already been checked by the node that forwarded it, which knows the client's listener.
    """
    if call.principal.token_authenticated:
        return False
    return call.forwarded or call.listener in broker.config.sasl_listeners
