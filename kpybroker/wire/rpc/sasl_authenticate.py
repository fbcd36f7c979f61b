"""SaslAuthenticate (36): contains one SASL message of a login (KIP-152), and the session lifetime (KIP-368)."""

from kpybroker.wire.codec.message import field, message
from kpybroker.wire.codec.primitives import Int16, Int64


@message("0-2", flexible=2)
class Request:
    auth_bytes: bytes = b""


@message("0-2", flexible=2)
class Response:
    error_code: Int16 = 0
    error_message: str | None = ""
    auth_bytes: bytes = b""
    session_lifetime_ms: Int64 = field("1+")
