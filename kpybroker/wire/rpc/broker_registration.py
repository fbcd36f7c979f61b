"""BrokerRegistration (62): a starting broker registers with the active controller (KIP-631)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Int64, Uint16, Uuid


@part
class Listener:
    name: str = ""
    host: str = ""
    port: Uint16 = 0
    security_protocol: Int16 = 0


@part
class Feature:
    name: str = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@message("0-4", flexible=0)
class Request:
    broker_id: Int32 = 0
    cluster_id: str = ""
    incarnation_id: Uuid = ZERO_UUID
    listeners: list[Listener] = []
    features: list[Feature] = []
    rack: str | None = ""
    is_migrating_zk_broker: bool = field("1+")
    log_dirs: list[Uuid] = field("2+")
    previous_broker_epoch: Int64 = field("3+", default=-1)


@message("0-4", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    broker_epoch: Int64 = -1
