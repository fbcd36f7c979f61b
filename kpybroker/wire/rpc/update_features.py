"""UpdateFeatures (57): changes the finalized levels of features (KIP-584, KIP-778)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32


@part
class FeatureUpdateKey:
    feature: str = ""
    max_version_level: Int16 = 0
    allow_downgrade: bool = field("0")
    upgrade_type: Int8 = field("1+", default=1)


@message("0-2", flexible=0)
class Request:
    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: bool = field("1+")


@part
class UpdatableFeatureResult:
    feature: str = ""
    error_code: Int16 = 0
    error_message: str | None = ""


@message("0-2", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    results: list[UpdatableFeatureResult] = field("0-1")
