"""What an actor of a run is: whether a seed has it, what it prepares, starts, and checks in the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import ClassVar

from kpybroker.sim.clients.client import Client
from kpybroker.sim.clients.run import Run
from kpybroker.sim.cluster.setup import Setup

Preparation = tuple[str, Callable[[], Awaitable[None]]]
"""What is made, in words, and the work, which is tried again where it raises Unanswered or Refused."""


class Actor:
    """One of a run. The class says when it takes part; an instance takes part in one run."""

    name: ClassVar[str] = ""
    """In `Setup.actors`, and in the seed of its draws."""
    odds: ClassVar[float] = 0.0
    """In how many of the seeds that suit it takes part."""
    checks: ClassVar[str] = ""
    """What `check` looks at, in words; nothing, where there is no such check."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return cls.name in setup.actors

    @classmethod
    def suits(cls, setup: Setup) -> bool:
        """Whether it can take part at all."""
        return True

    @classmethod
    def draw(cls, setup: Setup, random: Random) -> Setup:
        """The setup with what the actor needs: settings of nodes, topics."""
        return setup

    def preparations(self, founder: Client) -> list[Preparation]:
        """What is made before anything breaks."""
        return []

    def start(self) -> None:
        """Start its clients, before anything breaks."""

    async def rest(self) -> bool:
        """With everything mended and its clients still at work: whether all is at rest, and a breach where not."""
        return True

    async def conclude(self) -> bool:
        """When the clients of all actors have stopped, a last thing that it does: False, with a breach, if it fails."""
        return True

    async def check(self, auditor: Client) -> None:
        """When its clients have stopped, and again after a restart, as a client. Raises Unanswered, Refused, as long as
        something may still come about."""

    def look(self) -> None:
        """Then, from inside."""
