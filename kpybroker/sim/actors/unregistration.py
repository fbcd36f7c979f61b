"""UnregisterBroker for brokers that are down or running. They must register again (KIP-631)."""

from __future__ import annotations

from kpybroker.controller.commands import UnregisterBroker
from kpybroker.controller.state import ControllerState
from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.client import SimClient, Unanswered
from kpybroker.sim.clients.run import Run
from kpybroker.sim.cluster.cluster import SimMachine
from kpybroker.sim.cluster.setup import Setup

AT_WORK_ODDS = 0.15
LOOKS_EVERY_S = 1.0


class Unregistration(Actor):
    """Checks that every broker is registered again once the cluster has settled. No record may be lost."""

    name = "unregistration"
    odds = 0.11
    checks = "the registered brokers"

    @classmethod
    def suits(cls, setup: Setup) -> bool:
        return len(setup.nodes) > 2 and (setup.outlives_power or "power_loss" not in setup.faults)

    def start(self) -> None:
        client = self.run.client("unregistrar")
        self.run.start(client, Unregistrar(client, self.run))

    async def check(self, auditor: SimClient) -> None:
        for machine in self.run.machines:
            if machine.node is None:
                raise Unanswered(f"{machine.name} is not running")
            brokers = machine.node.broker.metadata.image.brokers
            away = [each.setup.node_id for each in self.run.machines if each.setup.node_id not in brokers]
            fenced = [broker.id for broker in brokers.values() if broker.fenced]
            if away or fenced:
                raise Unanswered(
                    f"in the metadata of {machine.name}, brokers {away} are not registered, and "
                    f"brokers {fenced} are fenced"
                )


class Unregistrar:
    """Unregisters brokers. It passes the command directly to the active controller, because a request that arrives late
    could unregister the last in-sync replica of a partition, which would not be a bug."""

    def __init__(self, client: SimClient, run: Run) -> None:
        self._client = client
        self._run = run

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            await client.nap(2 * LOOKS_EVERY_S)
            client.succeeded()
            machine = client.random.choice(self._run.machines)
            if machine.node is None or client.random.random() < AT_WORK_ODDS:
                self._unregister(machine)

    def _unregister(self, machine: SimMachine) -> None:
        for other in self._run.machines:
            if other.node is None or not other.node.broker.controller.is_active or other.process is None:
                continue
            controller, node_id = other.node.broker.controller, machine.setup.node_id
            if node_id in controller.machine.state.brokers and others_suffice(controller.machine.state, node_id):
                self._client.note(f"unregisters node {node_id}")
                self._client.history.count("brokers unregistered")
                with self._client.loop.acting(other.process.owner):
                    controller.tell(UnregisterBroker(node_id))
            return


def others_suffice(state: ControllerState, node_id: int) -> bool:
    """Whether every partition of the broker has an in-sync replica on another live broker."""
    partitions = [one for topic in state.topics.values() for one in topic.partitions.values()]
    return all(
        any(member != node_id and state.active(member) for member in one.isr)
        for one in partitions
        if node_id in one.replicas
    )
