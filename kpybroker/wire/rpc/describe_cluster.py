"""DescribeCluster (60): returns the cluster id, the controller and the brokers."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32


@message("0-2", flexible=0)
class Request:
    include_cluster_authorized_operations: bool = False
    endpoint_type: Int8 = field("1+", default=1)
    include_fenced_brokers: bool = field("2+")


@part
class DescribeClusterBroker:
    broker_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None
    is_fenced: bool = field("2+")


@message("0-2", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    endpoint_type: Int8 = field("1+", default=1)
    cluster_id: str = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: Int32 = -(2**31)
