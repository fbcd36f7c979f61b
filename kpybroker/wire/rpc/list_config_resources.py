"""ListConfigResources (74): returns the resources that may have settings (KIP-1142)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32


@message("0-1", flexible=0)
class Request:
    resource_types: list[Int8] = field("1+")


@part
class ConfigResource:
    resource_name: str = ""
    resource_type: Int8 = field("1+", default=16)


@message("0-1", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = []
