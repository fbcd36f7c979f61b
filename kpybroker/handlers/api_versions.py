"""ApiVersions (18): return the API versions that this node serves, and the features of its cluster.

The response header is always v0. v3 is flexible, contains the client's software (KIP-511) and returns features
(KIP-584). Below v4, features with a minimum level of 0 are omitted because older clients cannot read them
(KAFKA-17492).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc.api_versions import (
    SOFTWARE_FROM,
    ApiVersion,
    FinalizedFeatureKey,
    Request,
    Response,
    SupportedFeatureKey,
    has_valid_software,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the version range of each API, and the supported range and the finalized level of each feature."""
    if call.version >= SOFTWARE_FROM and not has_valid_software(request):
        return Response(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    features = broker.membership.supported_features
    levels = {**broker.metadata.image.features, "kraft.version": broker.quorum.kraft_version}
    return Response(
        api_keys=[
            ApiVersion(api_key=row.key, min_version=versions[0], max_version=versions[1])
            for row in api_table.API
            if call.side in row.listens.value
            and (versions := broker.membership.served_versions.advertised(row, call.client_id)) is not None
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in features.items()
            if low > 0 or call.version >= 4
        ],
        finalized_features_epoch=broker.metadata.image.offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in levels.items()
            if level and name in features  # a directory formatted by Kafka has features that this broker does not have
        ],
    )
