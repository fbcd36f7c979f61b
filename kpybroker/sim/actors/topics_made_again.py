"""Somebody who makes a topic again and again: the last one begins at 0."""

from __future__ import annotations

from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.client import Client
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_remaking import Remaker
from kpybroker.sim.cluster.setup import Setup


class TopicsMadeAgain(Actor):
    """One client."""

    checks = "the topic that was made again"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._remaker: Remaker | None = None

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return setup.remakes

    def start(self) -> None:
        client = self.run.client("remaker")
        self._remaker = Remaker(client, self.run.setup.replicas, pace_s=3.0)
        self.run.start(client, self._remaker)

    async def check(self, auditor: Client) -> None:
        if self._remaker is not None:
            await self._remaker.check(auditor)
