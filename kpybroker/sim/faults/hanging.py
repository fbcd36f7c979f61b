"""Simulates disks that hang, and checks that the other nodes continue to work during this time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from kpybroker.config import parse_config
from kpybroker.sim.cluster.setup import Setup
from kpybroker.sim.faults.durability import is_whole
from kpybroker.sim.world.history import History
from kpybroker.world.devices import SLOW_WRITE_S

if TYPE_CHECKING:
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.sim.cluster.cluster import SimMachine

HANG_S = (5.0, 20.0)
SPARE_S = 3.0
"""Additional time for an election, and for heartbeats and fetches in flight."""
LOOKS_EVERY_S = 0.1

Progress = dict[tuple[int, bytes, int], tuple[int, float]]
"""A high watermark below the end of the log, and the time of its last change, by leader, topic id and partition."""


class Hanging:
    """Makes disks hang. If all other nodes have their data when a hang begins, no high watermark may be stuck for
    longer than a broker session and two fetch timeouts of the quorum, plus `SPARE_S`."""

    def __init__(self, setup: Setup, machines: list[SimMachine], history: History) -> None:
        self._setup = setup
        self._machines = machines
        self._history = history
        self._random = Random(f"disk hangs {setup.seed}")
        config = parse_config(setup.nodes[0].properties)
        limit_ms = config.broker_session_timeout_ms + 2 * config.controller_quorum_fetch_timeout_ms
        self._limit_s = limit_ms / 1000 + SPARE_S
        self._ends_s = 0.0

    async def hang(self, machine: SimMachine) -> None:
        """Make one log directory of a machine hang for a while."""
        loop, process = asyncio.get_running_loop(), machine.process
        seconds = self._random.uniform(*HANG_S)
        if process is None:
            return
        below = self._random.choice(self._setup.log_dirs)
        process.world.disk.device(below).took(SLOW_WRITE_S, loop.time())
        machine.storage.stall(loop.time() + seconds, below)
        self._ends_s = max(self._ends_s, machine.storage.stalled_until_s)
        others = [other for other in self._machines if other is not machine]
        # while voters change, this machine may be one of only two voters
        is_watched = not self._setup.voters_change and all(is_whole(other, self._machines) for other in others)
        self._history.count("watched hangs", is_watched)
        progress: Progress = {}
        while loop.time() < machine.storage.stalled_until_s and machine.process is process:
            await asyncio.sleep(LOOKS_EVERY_S)
            if is_watched and not self._goes_on(progress):
                return
        machine.storage.stall(0.0, below)

    async def end(self) -> None:
        """Wait until the writes to hanging disks are done."""
        await asyncio.sleep(self._ends_s - asyncio.get_running_loop().time() + SPARE_S)

    def _goes_on(self, progress: Progress) -> bool:
        """Check every partition that has enough replicas even without one node. Returns False after a breach."""
        now_s = asyncio.get_running_loop().time()
        brokers = {each.node.broker.node_id: each.node.broker for each in self._machines if each.node is not None}
        newest = max((broker.metadata.image for broker in brokers.values()), key=lambda image: image.offset)
        waiting: Progress = {}
        for topic in newest.topics.values():
            for index, state in enumerate(topic.partitions):
                broker = brokers.get(state.leader)
                partition = None if broker is None else broker.replication.hosting.find(topic.name, index)
                if len(state.replicas) == 1 or (partition is not None and not _waits(partition)):
                    continue
                key, watermark = (state.leader, topic.id, index), partition.log.high_watermark if partition else -1
                known = progress.get(key)
                waiting[key] = known if known is not None and known[0] == watermark else (watermark, now_s)
                silent_s = now_s - waiting[key][1]
                if silent_s > self._limit_s:
                    what = f"{topic.name}-{index}, led by {state.leader}, has stood still for {silent_s:.1f} s"
                    self._history.breach(f"the disk of one node hangs, and {what}")
                    return False
        progress.clear()
        progress.update(waiting)
        return True


def _waits(partition: Partition) -> bool:
    is_enough = partition.log.settings.min_insync_replicas < len(partition.replicas)
    return is_enough and partition.offline is None and partition.log.high_watermark < partition.log.end
