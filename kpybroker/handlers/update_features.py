"""UpdateFeatures (57): finalize other levels (KIP-584, KIP-778).

v1 says what kind of downgrade is allowed, where v0 says only whether one is; v2 has no results of
each feature, which say nothing anyway: all change, or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import FeatureUpdate, UpdateFeatures, UpgradeType
from kpybroker.wire.rpc.update_features import Request, Response, UpdatableFeatureResult

if TYPE_CHECKING:
    from kpybroker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """All updates together, or none. Raises INVALID_UPDATE_VERSION, INVALID_REQUEST."""
    updates = tuple(
        FeatureUpdate(
            each.feature,
            each.max_version_level,
            UpgradeType.SAFE_DOWNGRADE if each.allow_downgrade else each.upgrade_type,
        )
        for each in request.feature_updates
    )
    await broker.controller.ask(UpdateFeatures(updates, request.validate_only), request.timeout_ms)
    return Response(error_message=None, results=_results(request))


def _results(request: Request) -> list[UpdatableFeatureResult]:
    return [UpdatableFeatureResult(feature=each.feature, error_message=None) for each in request.feature_updates]
