"""AddRaftVoter (80): turns an observer of the metadata quorum into a voter (KIP-853)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Uint16, Uuid


@part
class Listener:
    name: str = ""
    host: str = ""
    port: Uint16 = 0


@message("0-1", flexible=0)
class Request:
    cluster_id: str | None = ""
    timeout_ms: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: list[Listener] = []
    ack_when_committed: bool = field("1+", default=True)


@message("0-1", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
