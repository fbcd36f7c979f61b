"""ApiVersions (18): returns the supported APIs and their versions, and the finalized features."""

import re

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64

SOFTWARE_FROM = 3
"""The first version in which a client sends the name and version of its software (KIP-511)."""
SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@message("0-4", flexible=3)
class Request:
    client_software_name: str = field("3+")
    client_software_version: str = field("3+")


@part
class ApiVersion:
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


@part
class SupportedFeatureKey:
    name: str = field("3+")
    min_version: Int16 = field("3+")
    max_version: Int16 = field("3+")


@part
class FinalizedFeatureKey:
    name: str = field("3+")
    max_version_level: Int16 = field("3+")
    min_version_level: Int16 = field("3+")


@message("0-4", flexible=3)
class Response:
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Int32 = field("1+")
    supported_features: list[SupportedFeatureKey] = field("3+", tag=0)
    finalized_features_epoch: Int64 = field("3+", default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = field("3+", tag=2)
    zk_migration_ready: bool = field("3+", tag=3)


def has_valid_software(request: Request) -> bool:
    """Whether the name and the version of the client's software may be used as labels."""
    return bool(
        SOFTWARE.fullmatch(request.client_software_name) and SOFTWARE.fullmatch(request.client_software_version)
    )
