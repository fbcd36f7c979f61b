"""FindCoordinator (10): returns the broker that coordinates a group, transactional id or share partition."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32


@message("0-6", flexible=3)
class Request:
    key: str = field("0-3")
    key_type: Int8 = field("1+")
    coordinator_keys: list[str] = field("4+")


@part
class Coordinator:
    key: str = field("4+")
    node_id: Int32 = field("4+")
    host: str = field("4+")
    port: Int32 = field("4+")
    error_code: Int16 = field("4+")
    error_message: str | None = field("4+", default="")


@message("0-6", flexible=3)
class Response:
    throttle_time_ms: Int32 = field("1+")
    error_code: Int16 = field("0-3")
    error_message: str | None = field("1-3", default="")
    node_id: Int32 = field("0-3")
    host: str = field("0-3")
    port: Int32 = field("0-3")
    coordinators: list[Coordinator] = field("4+")
