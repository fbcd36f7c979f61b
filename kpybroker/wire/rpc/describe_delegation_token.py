"""DescribeDelegationToken (41): returns the tokens of some owners, or of all owners (KIP-48, KIP-373)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@part
class DescribeDelegationTokenOwner:
    principal_type: str = ""
    principal_name: str = ""


@message("1-3", flexible=2)
class Request:
    owners: list[DescribeDelegationTokenOwner] | None = []


@part
class DescribedDelegationTokenRenewer:
    principal_type: str = ""
    principal_name: str = ""


@part
class DescribedDelegationToken:
    principal_type: str = ""
    principal_name: str = ""
    token_requester_principal_type: str = field("3+")
    token_requester_principal_name: str = field("3+")
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: str = ""
    hmac: bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = []


@message("1-3", flexible=2)
class Response:
    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = []
    throttle_time_ms: Int32 = 0
