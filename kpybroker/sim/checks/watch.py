"""Checks the internal state of nodes during a run: Images at equal offsets, one leader per epoch, reported log ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kpybroker.metadata.image import Image
from kpybroker.raft.core.state import NOBODY, Voted
from kpybroker.sim.checks.claims import Claims
from kpybroker.sim.clients.voter_admin import VoterChecks

if TYPE_CHECKING:
    from kpybroker.sim.cluster.cluster import SimMachine
    from kpybroker.sim.world.history import History
    from kpybroker.sim.world.loop import VirtualLoop

LOOKS_EVERY_S = 0.1


class Watch:
    """Checks every node ten times a second, and stores the observed values."""

    def __init__(self, loop: VirtualLoop, machines: list[SimMachine], history: History) -> None:
        self._loop = loop
        self._machines = machines
        self._history = history
        self._images: dict[int, tuple[str, Image]] = {}
        self._looked_at: dict[str, Image] = {}
        self._leaders: dict[tuple[bytes, int, int], int] = {}
        self._quorum_leaders: dict[int, str] = {}
        self._voters = VoterChecks(history)
        self._claims = Claims(history)
        self._voted: dict[str, tuple[int, int]] = {}
        """The last epoch of each node, and the candidate for which the node voted."""

    async def run(self) -> None:
        while True:
            for machine in self._machines:
                self.look(machine)
            self._claims.look(self._machines)
            await asyncio.sleep(LOOKS_EVERY_S)

    def look(self, machine: SimMachine) -> None:
        """Check a node's Image, vote and leaders against those observed earlier."""
        node = machine.node
        if node is None:
            return
        broker = node.broker
        quorum = broker.quorum.state
        if quorum.is_leader:
            leader = self._quorum_leaders.setdefault(quorum.voted.epoch, machine.name)
            if leader != machine.name:
                self._history.breach(f"{leader} and {machine.name} both lead the quorum in epoch {quorum.voted.epoch}")
        self._remember_vote(machine.name, quorum.voted)
        self._voters.look(machine.name, broker.quorum)
        image = broker.metadata.image
        if self._looked_at.get(machine.name) is image:
            return
        self._looked_at[machine.name] = image
        name, known = self._images.setdefault(image.offset, (machine.name, image))
        if known is not image and known != image:
            self._history.breach(f"{name} and {machine.name} have different Images at offset {image.offset}")
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                key = (topic.id, index, partition.leader_epoch)
                leader_id = self._leaders.setdefault(key, partition.leader)
                if leader_id != partition.leader:
                    self._history.breach(
                        f"{topic.name}-{index} has leaders {leader_id} and {partition.leader} "
                        f"in epoch {partition.leader_epoch}"
                    )

    def _remember_vote(self, name: str, voted: Voted) -> None:
        """Store a node's vote. Its epoch must never go back, even after a power loss, and it may vote only once in an
        epoch."""
        epoch, voted_id = self._voted.get(name, (-1, NOBODY))
        if voted.epoch < epoch:
            self._history.breach(f"{name} was in epoch {epoch} of the quorum, but now is in {voted.epoch}")
        elif voted.epoch == epoch and NOBODY not in (voted.voted_id, voted_id) and voted.voted_id != voted_id:
            self._history.breach(f"{name} has voted for both {voted_id} and {voted.voted_id} in epoch {epoch}")
        if voted.epoch > epoch or voted.voted_id != NOBODY:
            self._voted[name] = voted.epoch, voted.voted_id
