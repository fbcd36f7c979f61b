"""DescribeConfigs (32): returns the settings of topics, brokers and groups, with the source of each value."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32


@part
class DescribeConfigsResource:
    resource_type: Int8 = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = []


@message("1-4", flexible=4)
class Request:
    resources: list[DescribeConfigsResource] = []
    include_synonyms: bool = False
    include_documentation: bool = field("3+")


@part
class DescribeConfigsSynonym:
    name: str = ""
    value: str | None = ""
    source: Int8 = 0


@part
class DescribeConfigsResourceResult:
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: Int8 = -1
    is_sensitive: bool = False
    synonyms: list[DescribeConfigsSynonym] = []
    config_type: Int8 = field("3+")
    documentation: str | None = field("3+", default="")


@part
class DescribeConfigsResult:
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = []


@message("1-4", flexible=4)
class Response:
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []
