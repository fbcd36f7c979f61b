"""DescribeUserScramCredentials (50): returns the mechanisms and iterations of users' SCRAM credentials (KIP-554)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32


@part
class UserName:
    name: str = ""


@message("0", flexible=0)
class Request:
    users: list[UserName] | None = []


@part
class CredentialInfo:
    mechanism: Int8 = 0
    iterations: Int32 = 0


@part
class DescribeUserScramCredentialsResult:
    user: str = ""
    error_code: Int16 = 0
    error_message: str | None = ""
    credential_infos: list[CredentialInfo] = []


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResult] = []
