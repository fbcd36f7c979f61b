"""SaslHandshake (17) where no login is under way: a listener without logins, or a session that goes on (KIP-43).

Logins are handled before dispatch, by `server/connections/logging_in.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc.sasl_handshake import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def handle(broker: Broker, call: Call, _request: Request) -> Response:
    if call.listener not in broker.config.sasl_listeners:
        broker.tell_refusal(
            call.host,
            "connection from %s to listener %s: it wants to log in, and there are no logins here; set "
            "security.protocol=PLAINTEXT (or SSL) in the client",
            call.host,
            call.listener,
        )
    return Response(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
