"""A group of the consumer protocol. Once the cluster has settled, every partition must have an owner."""

from __future__ import annotations

import asyncio

from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.consumer_members import ConsumerGroupMember
from kpybroker.sim.cluster.setup import Setup

GROUP = "sharers"
REST_LIMIT_S = 60.0


class SharedGroup(Actor):
    """Runs the members. `PartitionOwnership` checks that no partition has two owners, even when members of the classic
    protocol are in the group."""

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return setup.consumer_members > 0

    def start(self) -> None:
        run = self.run
        topics = sorted({name for name, _ in run.writable})
        for number in range(run.setup.consumer_members):
            client = run.client(f"s{number}")
            run.start(client, ConsumerGroupMember(client, GROUP, topics, run.ownership, pace_s=1.0))

    async def rest(self) -> bool:
        run = self.run
        deadline = run.loop.time() + REST_LIMIT_S
        while left := run.ownership.without_owner(run.writable):
            if run.loop.time() > deadline:
                run.history.breach(f"{left} have no owner {REST_LIMIT_S:.0f} s after all faults were repaired")
                return False
            await asyncio.sleep(0.5)
        return True
