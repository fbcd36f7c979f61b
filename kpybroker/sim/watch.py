"""What is looked at from inside while a run goes on: Images at equal offsets, leaders of an epoch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kpybroker.metadata.image import Image

if TYPE_CHECKING:
    from kpybroker.sim.cluster import SimMachine
    from kpybroker.sim.history import History
    from kpybroker.sim.loop import VirtualLoop

LOOKS_EVERY_S = 0.1


class Watch:
    """Looks at every node, again and again, and remembers what it saw."""

    def __init__(self, loop: VirtualLoop, machines: list[SimMachine], history: History) -> None:
        self._loop = loop
        self._machines = machines
        self._history = history
        self._images: dict[int, tuple[str, Image]] = {}
        self._looked_at: dict[str, Image] = {}
        self._leaders: dict[tuple[bytes, int, int], int] = {}
        self._quorum_leaders: dict[int, str] = {}

    async def run(self) -> None:
        while True:
            for machine in self._machines:
                self.look(machine)
            await asyncio.sleep(LOOKS_EVERY_S)

    def look(self, machine: SimMachine) -> None:
        """Remember the Image that a node has now, and who it believes to lead."""
        node = machine.node
        if node is None:
            return
        broker = node.broker
        quorum = broker.quorum.state
        if quorum.is_leader:
            leader = self._quorum_leaders.setdefault(quorum.voted.epoch, machine.name)
            if leader != machine.name:
                self._history.breach(f"{leader} and {machine.name} both lead the quorum in epoch {quorum.voted.epoch}")
        image = broker.image
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
