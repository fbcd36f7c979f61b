"""The part of a quorum that a ControllerChannel uses: the address of the active controller, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kpybroker.call import CONTROLLER
from kpybroker.server.node import Node


class At(NamedTuple):
    """The address of an active controller."""

    node_id: int
    host: str
    port: int


class ControllerPointer:
    """Has the address of the active controller, which `to` changes."""

    def __init__(self) -> None:
        self.is_leader = False
        self.active_controller: At | None = None
        self.no_leader_reason: str | None = None
        self.lacks_majority = False
        self._callbacks: list[Callable[[], None]] = []

    def on_leadership(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def to(self, at: At | None) -> None:
        self.active_controller = at
        for callback in self._callbacks:
            callback()


async def controller_of(node: Node) -> At:
    """Start a new controller listener on a node, and return its address."""
    return At(node.broker.node_id, "127.0.0.1", await node.server.start("127.0.0.1", 0, "CONTROLLER", CONTROLLER))
