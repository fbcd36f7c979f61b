"""A listener as its connections see it."""

from __future__ import annotations

from dataclasses import dataclass

from kpybroker.call import BROKER


@dataclass(slots=True)
class Door:
    """Which listener it is, for whom, and whether requests are served yet; those that come earlier wait."""

    listener: str = "PLAINTEXT"
    side: str = BROKER
    is_open: bool = False
