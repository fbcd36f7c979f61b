"""UpdateFeatures (57): finalize other levels (KIP-584, KIP-778).

v1 says what kind of downgrade is allowed, where v0 says only whether one is; v2 has no results of
each feature, which say nothing anyway: all change, or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import FeatureUpdate, UpdateFeatures, UpgradeType
from kpybroker.controller.features import OF_THE_QUORUM
from kpybroker.wire.rpc.update_features import Request, Response, UpdatableFeatureResult

if TYPE_CHECKING:
    from kpybroker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """All updates together, or none; kraft.version is the quorum's, which checks it first and makes it last.

    Raises INVALID_UPDATE_VERSION, INVALID_REQUEST.
    """
    updates = tuple(
        FeatureUpdate(
            each.feature,
            each.max_version_level,
            UpgradeType.SAFE_DOWNGRADE if each.allow_downgrade else each.upgrade_type,
        )
        for each in request.feature_updates
    )
    changes = broker.quorum.changes
    of_the_quorum = [update for update in updates if update.name == OF_THE_QUORUM]
    for update in of_the_quorum:
        changes.check_upgrade(update.level, is_upgrade=update.upgrade_type == UpgradeType.UPGRADE)
    await broker.controller.ask(UpdateFeatures(updates, request.validate_only), request.timeout_ms)
    if not request.validate_only:
        for update in of_the_quorum:
            await changes.upgrade(update.level)
    return Response(error_message=None, results=_results(request))


def _results(request: Request) -> list[UpdatableFeatureResult]:
    return [UpdatableFeatureResult(feature=each.feature, error_message=None) for each in request.feature_updates]
