"""DeleteShareGroupOffsets (92): deletes the offsets of topics in an empty share group."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Uuid


@part
class DeleteShareGroupOffsetsRequestTopic:
    topic_name: str = ""


@message("0", flexible=0)
class Request:
    group_id: str = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = []


@part
class DeleteShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: Uuid = ZERO_UUID
    error_code: Int16 = 0
    error_message: str | None = None


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = []
