"""IncrementalAlterConfigs (44): sets, deletes, appends to or subtracts from individual settings (KIP-339)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32


@part
class AlterableConfig:
    name: str = ""
    config_operation: Int8 = 0
    value: str | None = ""


@part
class AlterConfigsResource:
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = []


@message("0-1", flexible=1)
class Request:
    resources: list[AlterConfigsResource] = []
    validate_only: bool = False


@part
class AlterConfigsResourceResponse:
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""


@message("0-1", flexible=1)
class Response:
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []
