"""AlterClientQuotas (49): sets and removes quotas of users, client ids and addresses (KIP-546, KIP-612)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int16, Int32


@part
class EntityData:
    entity_type: str = ""
    entity_name: str | None = ""


@part
class OpData:
    key: str = ""
    value: float = 0.0
    remove: bool = False


@part
class EntryData:
    entity: list[EntityData] = []
    ops: list[OpData] = []


@message("0-1", flexible=1)
class Request:
    entries: list[EntryData] = []
    validate_only: bool = False


@part
class EntryDataReply:
    error_code: Int16 = 0
    error_message: str | None = ""
    entity: list[EntityData] = []


@message("0-1", flexible=1)
class Response:
    throttle_time_ms: Int32 = 0
    entries: list[EntryDataReply] = []
