"""SaslHandshake (17): refuse the request on a listener without SASL, or after a login (KIP-43).

Requests during a login are handled before dispatch, by `server/connections/logging_in.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc.sasl_handshake import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def handle(_broker: Broker, _call: Call, _request: Request) -> Response:
    return Response(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
