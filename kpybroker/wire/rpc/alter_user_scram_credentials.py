"""AlterUserScramCredentials (51): sets and removes users' SCRAM credentials (KIP-554)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32


@part
class ScramCredentialDeletion:
    name: str = ""
    mechanism: Int8 = 0


@part
class ScramCredentialUpsertion:
    name: str = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: bytes = b""
    salted_password: bytes = b""


@message("0", flexible=0)
class Request:
    deletions: list[ScramCredentialDeletion] = []
    upsertions: list[ScramCredentialUpsertion] = []


@part
class AlterUserScramCredentialsResult:
    user: str = ""
    error_code: Int16 = 0
    error_message: str | None = ""


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = []
