"""The interface of actors: whether one takes part in a seed, and what it prepares, starts and checks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import ClassVar

from kpybroker.sim.clients.client import SimClient
from kpybroker.sim.clients.run import Run
from kpybroker.sim.cluster.setup import Setup

Preparation = tuple[str, Callable[[], Awaitable[None]]]
"""A description, and work that is retried when it raises Unanswered or Refused."""


class Actor:
    """An optional participant. The class decides whether it takes part in a seed; an instance belongs to one run."""

    name: ClassVar[str] = ""
    """Its name in `Setup.actors` and in the seed of its Random."""
    odds: ClassVar[float] = 0.0
    """The odds that it takes part in a seed that suits it."""
    checks: ClassVar[str] = ""
    """Describes what `check` checks; empty if there is no check."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return cls.name in setup.actors

    @classmethod
    def suits(cls, setup: Setup) -> bool:
        """Whether it can take part in this seed."""
        return True

    @classmethod
    def draw(cls, setup: Setup, random: Random) -> Setup:
        """The setup with the topics and node settings that the actor needs."""
        return setup

    def identify(self, client: SimClient) -> None:
        """Prepare a new client, before its first request."""

    def foundations(self, founder: SimClient) -> list[Preparation]:
        """What to create before the preparations of all other actors."""
        return []

    def preparations(self, founder: SimClient) -> list[Preparation]:
        """What to create before the first fault."""
        return []

    def start(self) -> None:
        """Start its clients, before the first fault."""

    async def rest(self) -> bool:
        """Called after all faults are repaired, while its clients still run: wait until the cluster has settled.
        Returns False after a breach."""
        return True

    async def conclude(self) -> bool:
        """Do the last work, after the clients of all actors have stopped. Returns False after a breach."""
        return True

    async def check(self, auditor: SimClient) -> None:
        """Check as a client when its clients have stopped, and again after a restart. Raises Unanswered or Refused
        where a later attempt may succeed."""

    def look(self) -> None:
        """Check the nodes from inside, after `check`."""
