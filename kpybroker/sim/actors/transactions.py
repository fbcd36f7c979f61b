"""An actor with transactional producers, and with clients that consume, transform and produce."""

from __future__ import annotations

from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.transacting import Transactor
from kpybroker.sim.clients.transforming import TEAM, TWINS, Transformer
from kpybroker.sim.cluster.setup import OUTPUTS, Setup

TWINS_ODDS = 0.4
"""The probability that two transactors share one transactional id, so that they fence each other repeatedly."""
TEAM_ODDS = 0.5


class TransactionClients(Actor):
    """Runs the clients. At the end, the package `checks` compares their records with the outcomes of their
    transactions."""

    @classmethod
    def plays(cls, setup: Setup) -> bool:
        return setup.transactors > 0

    def start(self) -> None:
        run, pace_s = self.run, self.run.pace_s
        are_twins = run.setup.transactors > 1 and run.random.random() < TWINS_ODDS
        for number in range(run.setup.transactors):
            client = run.client(f"t{number}")
            transactional_id = "twins" if are_twins else client.name
            client.share(transactional_id)
            run.start(client, Transactor(client, transactional_id, run.writable, pace_s=pace_s))
        is_team = run.setup.transformers > 0 and run.random.random() < TEAM_ODDS
        group, sources = (TEAM, run.writable) if is_team else (TWINS, run.writable[:1])
        for number in range(run.setup.transformers):
            client = run.client(f"x{number}")
            client.share(client.name if is_team else TWINS)
            pace_s = min(pace_s, 1.0)
            worker = Transformer(client, group, sources, (OUTPUTS, 0), is_member=is_team, pace_s=2 * pace_s)
            run.start(client, worker)
