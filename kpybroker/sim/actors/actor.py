"""The interface of actors, which may take part in a seed, and which prepare, start and check their part of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import ClassVar

from kpybroker.sim.clients.client import SimClient
from kpybroker.sim.clients.run import Run
from kpybroker.sim.cluster.setup import Setup

Preparation = tuple[str, Callable[[], Awaitable[None]]]
"""A description, and a function that is retried when it raises Unanswered or Refused."""


class Actor:
    """An optional participant. The class decides whether it takes part in a seed; an instance belongs to one run."""

    name: ClassVar[str] = ""
    """The actor's name in `Setup.actors` and in the seed of its Random."""
    odds: ClassVar[float] = 0.0
    """The probability that the actor takes part in a suitable seed."""
    checks: ClassVar[str] = ""
    """A description of the check; empty if there is none."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return cls.name in setup.actors

    @classmethod
    def suits(cls, setup: Setup) -> bool:
        """Whether the actor can take part in this seed."""
        return True

    @classmethod
    def draw(cls, setup: Setup, random: Random) -> Setup:
        """The setup with the topics and node settings that the actor needs."""
        return setup

    def identify(self, client: SimClient) -> None:
        """Prepare a new client, before its first request."""

    def foundations(self, founder: SimClient) -> list[Preparation]:
        """Preparations that must be done before those of all other actors."""
        return []

    def preparations(self, founder: SimClient) -> list[Preparation]:
        """Preparations that must be done before the first fault."""
        return []

    def start(self) -> None:
        """Start the actor's clients. Called before the first fault."""

    async def rest(self) -> bool:
        """Wait until the cluster has settled. Called after all faults are repaired, while the actor's clients still
        run. Returns False after a breach."""
        return True

    async def conclude(self) -> bool:
        """Do the remaining work after the clients of all actors have stopped. Returns False after a breach."""
        return True

    async def check(self, auditor: SimClient) -> None:
        """Check the actor's invariant with requests, after its clients have stopped and again after a restart. Raises
        Unanswered or Refused where a later attempt may succeed."""

    def look(self) -> None:
        """Check the internal state of the nodes, after `check`."""
