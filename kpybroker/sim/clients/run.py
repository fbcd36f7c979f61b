"""The interface of a run for its actors, clients and checks."""

from __future__ import annotations

from collections.abc import Coroutine
from random import Random
from typing import Any, Protocol

from kpybroker.sim.clients.client import SimClient
from kpybroker.sim.cluster.cluster import SimMachine
from kpybroker.sim.cluster.setup import Setup
from kpybroker.sim.laws.assignment_law import PartitionOwnership
from kpybroker.sim.world.history import History
from kpybroker.sim.world.loop import VirtualLoop
from kpybroker.topics import TopicPartition


class Work(Protocol):
    """The work of a client, which runs until the client is stopped."""

    def run(self) -> Coroutine[Any, Any, None]: ...


class Run(Protocol):
    """The part of the `Simulation` that actors, clients and checks use."""

    setup: Setup
    loop: VirtualLoop
    history: History
    machines: list[SimMachine]
    random: Random
    """The Random of the workload."""
    clients: list[SimClient]
    places: list[TopicPartition]
    writable: list[TopicPartition]
    tables: list[TopicPartition]
    ownership: PartitionOwnership
    pace_s: float
    """The longest pause of a client between two pieces of work."""
    slows_after: int
    """After this number of records, a producer pauses twice as long."""

    def client(self, name: str) -> SimClient: ...

    def start(self, client: SimClient, work: Work) -> None: ...
