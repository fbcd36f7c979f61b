"""Who may send requests about delegation tokens (KIP-48)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def may_ask(broker: Broker, call: Call) -> bool:
    """Whether the caller has logged in, but not with a delegation token.

    The node that forwards a request knows the client's listener, so it makes this decision.
    """
    if call.principal.token_authenticated:
        return False
    return call.forwarded or call.listener in broker.config.sasl_listeners
