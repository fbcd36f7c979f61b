"""CreateDelegationToken (38): creates a token with which a client can log in as its owner (KIP-48, KIP-373)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@part
class CreatableRenewers:
    principal_type: str = ""
    principal_name: str = ""


@message("1-3", flexible=2)
class Request:
    owner_principal_type: str | None = field("3+", default="")
    owner_principal_name: str | None = field("3+", default="")
    renewers: list[CreatableRenewers] = []
    max_lifetime_ms: Int64 = 0


@message("1-3", flexible=2)
class Response:
    error_code: Int16 = 0
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = field("3+")
    token_requester_principal_name: str = field("3+")
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: str = ""
    hmac: bytes = b""
    throttle_time_ms: Int32 = 0
