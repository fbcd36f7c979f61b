"""A group of the consumer protocol: at rest every partition has an owner."""

from __future__ import annotations

import asyncio

from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.consumer_members import Sharer
from kpybroker.sim.cluster.setup import Setup

GROUP = "sharers"
REST_LIMIT_S = 60.0


class ConsumerGroup(Actor):
    """What its members may have at the same time is held by `Shares`, beside members of the classic protocol."""

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return setup.sharers > 0

    def start(self) -> None:
        run = self.run
        topics = sorted({name for name, _ in run.worked})
        for number in range(run.setup.sharers):
            client = run.client(f"s{number}")
            run.start(client, Sharer(client, GROUP, topics, run.shares, pace_s=1.0))

    async def rest(self) -> bool:
        run = self.run
        deadline = run.loop.time() + REST_LIMIT_S
        while left := run.shares.without_owner(run.worked):
            if run.loop.time() > deadline:
                run.history.breach(f"nobody has {left} in {REST_LIMIT_S:.0f} s after all was mended")
                return False
            await asyncio.sleep(0.5)
        return True
