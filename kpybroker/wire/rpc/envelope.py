"""Envelope (58): contains a client's request that a broker forwards to the active controller (KIP-590)."""

from kpybroker.wire.codec.message import message
from kpybroker.wire.codec.primitives import Int16


@message("0", flexible=0)
class Request:
    request_data: bytes = b""
    request_principal: bytes | None = b""
    client_host_address: bytes = b""


@message("0", flexible=0)
class Response:
    response_data: bytes | None = None
    error_code: Int16 = 0
