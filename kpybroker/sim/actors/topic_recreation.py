"""An actor whose client deletes and recreates a topic repeatedly. The last topic must begin at offset 0."""

from __future__ import annotations

from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.client import SimClient
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_recreating import TopicRecreator
from kpybroker.sim.cluster.setup import Setup


class TopicRecreation(Actor):
    """Runs one client that recreates topics."""

    checks = "the topic that was recreated"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._recreator: TopicRecreator | None = None

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return setup.recreates_topics

    def start(self) -> None:
        client = self.run.client("remaker")
        self._recreator = TopicRecreator(client, self.run.setup.replicas, pace_s=3.0)
        self.run.start(client, self._recreator)

    async def check(self, auditor: SimClient) -> None:
        if self._recreator is not None:
            await self._recreator.check(auditor)
