"""DescribeClientQuotas (48): returns the quotas of the entities that match a filter (KIP-546)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32


@part
class ComponentData:
    entity_type: str = ""
    match_type: Int8 = 0
    match: str | None = ""


@message("0-1", flexible=1)
class Request:
    components: list[ComponentData] = []
    strict: bool = False


@part
class EntityData:
    entity_type: str = ""
    entity_name: str | None = ""


@part
class ValueData:
    key: str = ""
    value: float = 0.0


@part
class EntryData:
    entity: list[EntityData] = []
    values: list[ValueData] = []


@message("0-1", flexible=1)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    entries: list[EntryData] | None = []
