"""Decides on the registration of a controller (KIP-919)."""

from __future__ import annotations

from typing import Any

from kpybroker.controller.commands import RegisterController
from kpybroker.controller.state import ControllerState
from kpybroker.wire.stored import metadata as stored


def register_controller(state: ControllerState, command: RegisterController) -> tuple[list[Any], None]:
    """Replace the controller's registration. A request that is sent again writes nothing."""
    record = stored.RegisterControllerRecord(
        controller_id=command.node_id,
        incarnation_id=command.incarnation_id,
        zk_migration_ready=command.zk_migration_ready,
        end_points=[
            stored.ControllerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
            for name, host, port, protocol in command.endpoints
        ],
        features=[
            stored.ControllerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in command.features
        ],
    )
    return ([] if state.controllers.get(command.node_id) == record else [record]), None
