"""An actor whose client removes voters of the quorum and adds them again."""

from __future__ import annotations

from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.voter_admin import VoterAdmin
from kpybroker.sim.cluster.setup import Setup


class VoterChanges(Actor):
    """Runs the client. `VoterChecks` checks the voters during every run."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._voter_admin: VoterAdmin | None = None

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return setup.voters_change

    def start(self) -> None:
        run = self.run
        client = run.client("registrar")
        addresses = {node.node_id: node.address for node in run.setup.nodes}
        self._voter_admin = VoterAdmin(client, addresses, pace_s=3.0)
        run.start(client, self._voter_admin)

    def look(self) -> None:
        if self._voter_admin is not None:
            self._voter_admin.check(self.run.machines, self.run.history)
