"""A listener as its connections see it."""

from __future__ import annotations

from dataclasses import dataclass

BROKER, CONTROLLER = "broker", "controller"
"""The two sides of a node, by the words of `Listens`: clients come in at one, nodes of the quorum at the other."""


@dataclass(slots=True)
class Door:
    """Which listener it is, for whom, and whether requests are served yet; those that come earlier wait."""

    listener: str = "PLAINTEXT"
    side: str = BROKER
    is_open: bool = False
