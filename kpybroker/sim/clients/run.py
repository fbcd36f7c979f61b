"""A run as its actors and checks see it: the cluster, its clients, and what is known of both."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random
from typing import Any, Protocol

from kpybroker.sim.clients.client import Client
from kpybroker.sim.cluster.cluster import SimMachine
from kpybroker.sim.cluster.setup import Setup
from kpybroker.sim.laws.assignment_law import Shares
from kpybroker.sim.world.history import History, Place
from kpybroker.sim.world.loop import VirtualLoop


class Work(Protocol):
    """What a client does until it is told to stop."""

    def run(self) -> Coroutine[Any, Any, None]: ...


class Run(Protocol):
    """`Simulation`, for those that it starts."""

    setup: Setup
    loop: VirtualLoop
    history: History
    machines: list[SimMachine]
    random: Random
    """Draws of the workload."""
    clients: list[Client]
    places: list[Place]
    worked: list[Place]
    tables: list[Place]
    shares: Shares
    pace_s: float
    """How long clients wait between two pieces of work, at most."""
    tires_after: int
    """Records, after which a producer waits twice as long."""

    def client(self, name: str) -> Client: ...

    def start(self, client: Client, work: Work) -> None: ...
