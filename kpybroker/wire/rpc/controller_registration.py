"""ControllerRegistration (70): a starting controller reports its listeners to the active controller (KIP-919)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Uint16, Uuid


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


@message("0", flexible=0)
class Request:
    controller_id: Int32 = 0
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: bool = False
    listeners: list[Listener] = []
    features: list[Feature] = []


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
