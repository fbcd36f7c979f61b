"""Clients that stop amid a transaction and a generation while clocks jump: both end in their time."""

from __future__ import annotations

from random import Random

from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.abandoning import Abandoner
from kpybroker.sim.cluster.setup import Setup


class Abandonment(Actor):
    """One client, when the others have stopped."""

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return "clock_skew" in setup.faults

    async def conclude(self) -> bool:
        run = self.run
        random = Random(f"abandoned {run.setup.seed}")
        return await Abandoner(run.client("abandoner"), run.worked, run.machines, random).run()
