"""An actor whose client stops in the middle of a transaction and a generation while clocks jump: both must time out."""

from __future__ import annotations

from random import Random

from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.abandoning import Abandoner
from kpybroker.sim.cluster.setup import Setup


class Abandonment(Actor):
    """Runs one client, which starts after all other clients have stopped."""

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return "clock_skew" in setup.faults

    async def conclude(self) -> bool:
        run = self.run
        random = Random(f"abandoned {run.setup.seed}")
        return await Abandoner(run.client("abandoner"), run.writable, run.machines, random).run()
