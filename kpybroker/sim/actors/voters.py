"""An operator who removes voters of the quorum and adds them again."""

from __future__ import annotations

from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.voter_admin import Registrar
from kpybroker.sim.cluster.setup import Setup


class VoterChanges(Actor):
    """What must be true of voters on the way is looked at in every run (`VoterLaws`)."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._registrar: Registrar | None = None

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return setup.voters_change

    def start(self) -> None:
        run = self.run
        client = run.client("registrar")
        addresses = {node.node_id: node.address for node in run.setup.nodes}
        self._registrar = Registrar(client, addresses, pace_s=3.0)
        run.start(client, self._registrar)

    def look(self) -> None:
        if self._registrar is not None:
            self._registrar.check(self.run.machines, self.run.history)
