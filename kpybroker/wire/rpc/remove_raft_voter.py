"""RemoveRaftVoter (81): turns a voter of the metadata quorum into an observer (KIP-853)."""

from kpybroker.wire.codec.message import message
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Uuid


@message("0", flexible=0)
class Request:
    cluster_id: str | None = ""
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
