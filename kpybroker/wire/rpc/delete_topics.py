"""DeleteTopics (20): deletes topics by name, and from version 6 on also by id."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Uuid


@part
class DeleteTopicState:
    name: str | None = field("6+")
    topic_id: Uuid = field("6+")


@message("1-6", flexible=4)
class Request:
    topics: list[DeleteTopicState] = field("6+")
    topic_names: list[str] = field("1-5")
    timeout_ms: Int32 = 0


@part
class DeletableTopicResult:
    name: str | None = field(default="", nullable="6+")
    topic_id: Uuid = field("6+")
    error_code: Int16 = 0
    error_message: str | None = field("5+")


@message("1-6", flexible=4)
class Response:
    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult] = []
