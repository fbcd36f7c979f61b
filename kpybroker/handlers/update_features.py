"""UpdateFeatures (57): change the finalized levels of features (KIP-584, KIP-778).

v0 says whether downgrades are allowed, and v1 which kind of downgrade. v2 responses have no results for individual
features, which would be redundant because either all features change or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import FeatureUpdate, UpdateFeatures, UpgradeType
from kpybroker.controller.features import OF_THE_QUORUM
from kpybroker.wire.rpc.update_features import Request, Response, UpdatableFeatureResult

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Apply all updates or none. The quorum checks a change of kraft.version first and makes that change last.

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
    of_the_quorum = [update for update in updates if update.name == OF_THE_QUORUM]
    for update in of_the_quorum:
        broker.quorum.check_kraft_version(update.level, is_upgrade=update.upgrade_type == UpgradeType.UPGRADE)
    await broker.controller.ask(UpdateFeatures(updates, request.validate_only), request.timeout_ms)
    if not request.validate_only:
        for update in of_the_quorum:
            await broker.quorum.set_kraft_version(update.level)
    return Response(error_message=None, results=_results(request))


def _results(request: Request) -> list[UpdatableFeatureResult]:
    return [UpdatableFeatureResult(feature=each.feature, error_message=None) for each in request.feature_updates]
