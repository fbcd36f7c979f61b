"""Injects faults, each of which is repaired after a while. The number of broken machines is limited."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from random import Random

from kpybroker.metadata.image import Image
from kpybroker.sim.cluster.cluster import SimMachine
from kpybroker.sim.cluster.setup import BAD_FILE, DISK_HANG, LOST_DIRECTORY, SHORT_DESCRIPTORS, WRITE_STALL, Setup
from kpybroker.sim.faults.durability import is_whole, others_have_all
from kpybroker.sim.faults.hanging import Hanging
from kpybroker.sim.world.history import History
from kpybroker.sim.world.network import Fabric

RESTART_ODDS = 0.5
"""The probability that a node is stopped, and not killed, for the restart after a disk fault."""


class Nemesis:
    """Injects random faults for the time in the setup, and then repairs all of them."""

    def __init__(
        self, setup: Setup, machines: list[SimMachine], clients: list[str], fabric: Fabric, history: History
    ) -> None:
        self._setup = setup
        self._machines = machines
        self._clients = clients
        self._fabric = fabric
        self._loop = fabric.loop
        self._history = history
        self._random = Random(f"nemesis {setup.seed}")
        self._stalls = Random(f"write stalls {setup.seed}")
        self._broken: dict[str, None] = {}
        """Names of machines that are down or unreachable."""
        self._lost_power: dict[int, int] = {}
        """The broker epoch at the last power loss, by node id. Data that was only in the page cache may have been
        lost."""
        self._under_way: list[asyncio.Task[None]] = []
        self._hanging = Hanging(setup, machines, history)
        self._faults: dict[str, Callable[[SimMachine], Awaitable[None]]] = {
            "crash": self._crash,
            "power_loss": self._power_loss,
            "fuse": self._fuse,
            "pause": self._pause,
            "restart": self._restart,
            "cut_clients": self._cut_clients,
            "slow_clients": self._slow_clients,
            "reset": self._reset,
            "fsync_stall": self._fsync_stall,
            WRITE_STALL: self._write_stall,
            DISK_HANG: self._hanging.hang,
            "disk_full": self._disk_full,
            "disk_error": self._disk_error,
            "clock_skew": self._clock_skew,
            "partition": self._partition,
            "one_way": self._one_way,
            "isolate": self._isolate,
            "slow_node": self._slow_node,
            "deaf": self._deaf,
            LOST_DIRECTORY: self._lost_directory,
            BAD_FILE: self._bad_file,
            SHORT_DESCRIPTORS: self._short_descriptors,
        }

    async def run(self) -> None:
        """Inject faults for `trouble_s` seconds."""
        setup, random = self._setup, self._random
        ends = self._loop.time() + setup.trouble_s
        while self._loop.time() < ends:
            await asyncio.sleep(random.random() * 2 * setup.pause_between_s)
            if not setup.faults:
                continue
            machine = random.choice(self._machines)
            name = random.choice(setup.faults)
            if machine.name in self._broken or len(self._broken) >= setup.spare:
                continue
            self._history.note("nemesis", f"{name} on {machine.name}")
            self._history.count(f"fault {name}")
            self._broken[machine.name] = None
            self._under_way.append(self._loop.create_task(self._one(self._faults[name], machine)))

    async def _one(self, fault: Callable[[SimMachine], Awaitable[None]], machine: SimMachine) -> None:
        try:
            await fault(machine)
        finally:
            self._broken.pop(machine.name, None)

    async def mend(self) -> None:
        """Repair all faults, and start every node that is down."""
        self._history.note("nemesis", "repairs everything")
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        if DISK_HANG in self._setup.faults:
            await self._hanging.end()
        self._fabric.calm()
        for machine in self._machines:
            machine.mend()
            if machine.had_disk_trouble:
                await self._restart_after_trouble(machine)
            if machine.process is not None and machine.process.stopping:
                machine.kill("is killed while stopping")
            if machine.process is None:
                machine.start()

    async def _while(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self._random.uniform(low_s, high_s))

    # ---- the node

    async def _back(self, machine: SimMachine) -> None:
        await self._while(0.05, 5.0)
        if machine.process is None:
            machine.start()

    async def _crash(self, machine: SimMachine) -> None:
        machine.stay_down()
        machine.kill()
        await self._back(machine)

    async def _power_loss(self, machine: SimMachine) -> None:
        machine.stay_down()
        if self._may_lose_power(machine):
            machine.lose_power()
        else:
            machine.kill()
        await self._back(machine)
        await self._until_known(machine)

    async def _fuse(self, machine: SimMachine) -> None:
        """Kill the process in the middle of a write to its disk. If power loss is among the faults, the machine also
        loses power in half of the cases."""
        takes_power = "power_loss" in self._setup.faults and self._random.random() < 0.5
        machine.light_fuse(
            self._random.choice((0, 1, 3, 10, 40)), takes_power=lambda: takes_power and self._may_lose_power(machine)
        )
        await self._while(2.0, 4.0)
        if not self._setup.outlives_power:
            machine.put_out_fuse()
            await self._until_known(machine)

    def _may_lose_power(self, machine: SimMachine) -> bool:
        """Whether all acknowledged records are on the machine's disk, or in the page cache of another in-sync
        replica."""
        if self._setup.outlives_power:
            return True
        image, node_id = self._newest_image(), machine.setup.node_id
        if node_id not in image.brokers:
            return False
        for topic in image.topics.values():
            for partition in topic.partitions:
                if node_id in partition.isr and not any(
                    other != node_id and self._has_all(image, other) and self._is_registered(image, other)
                    for other in partition.isr
                ):
                    return False
        self._lost_power[node_id] = image.brokers[node_id].epoch
        return True

    def _newest_image(self) -> Image:
        images = [machine.node.broker.metadata.image for machine in self._machines if machine.node is not None]
        return max(images, key=lambda image: image.offset, default=Image())

    def _has_all(self, image: Image, node_id: int) -> bool:
        """Whether an in-sync node has all records. After a power loss, this is so only once it has registered again."""
        return image.brokers[node_id].epoch > self._lost_power.get(node_id, -1)

    def _is_registered(self, image: Image, node_id: int) -> bool:
        """Whether a node is running with its registration in the Image. If not, its removal from the ISR may already be
        decided, but not committed."""
        node = next((machine.node for machine in self._machines if machine.setup.node_id == node_id), None)
        return node is not None and node.broker.membership.epoch == image.brokers[node_id].epoch

    async def _until_known(self, machine: SimMachine) -> None:
        """Wait until a node has registered again. Until then, it is in the ISR although it lacks data, and counts as
        broken."""
        while not self._setup.outlives_power:
            image = self._newest_image()
            if machine.setup.node_id in image.brokers and self._has_all(image, machine.setup.node_id):
                return
            await asyncio.sleep(0.1)

    async def _pause(self, machine: SimMachine) -> None:
        process = machine.process
        machine.pause(True)
        await self._while(0.1, 9.0)
        if machine.process is process:
            machine.pause(False)

    async def _restart(self, machine: SimMachine) -> None:
        machine.stay_down()
        await machine.stop()
        await self._back(machine)

    # ---- its network

    async def _cut_clients(self, machine: SimMachine) -> None:
        address = machine.setup.address
        shape = self._random.choice(("both", "to", "from"))
        for client in self._clients:
            if shape != "from":
                self._fabric.cut(client, address)
            if shape != "to":
                self._fabric.cut(address, client)
        await self._while(0.5, 8.0)
        self._fabric.heal()

    async def _slow_clients(self, machine: SimMachine) -> None:
        seconds = self._random.choice((0.02, 0.2, 1.5))
        for client in self._clients:
            self._fabric.slow(client, machine.setup.address, seconds)
            self._fabric.slow(machine.setup.address, client, seconds)
        await self._while(0.5, 6.0)
        self._fabric.heal()

    async def _reset(self, machine: SimMachine) -> None:
        for _ in range(self._random.choice((1, 3, 10))):
            for client in self._clients:
                if self._random.random() < 0.5:
                    self._fabric.reset_between(machine.setup.address, client)
            await self._while(0.01, 0.5)

    def _others(self, machine: SimMachine) -> list[str]:
        return [other.setup.address for other in self._machines if other is not machine]

    async def _partition(self, machine: SimMachine) -> None:
        """Split the nodes into two groups. Clients still reach all nodes."""
        addresses = [one.setup.address for one in self._machines]
        left = [address for address in addresses if self._random.random() < 0.5]
        for one in left:
            for other in addresses:
                if other not in left:
                    self._fabric.cut(one, other)
                    self._fabric.cut(other, one)
        await self._while(0.5, 10.0)
        self._fabric.heal()

    async def _one_way(self, machine: SimMachine) -> None:
        """Cut one direction between the machine and all other machines, or one of them."""
        others = self._others(machine)
        if others and self._random.random() < 0.5:
            others = [self._random.choice(others)]
        outwards = self._random.random() < 0.5
        for other in others:
            if outwards:
                self._fabric.cut(machine.setup.address, other)
            else:
                self._fabric.cut(other, machine.setup.address)
        await self._while(0.5, 10.0)
        self._fabric.heal()

    async def _deaf(self, machine: SimMachine) -> None:
        """Let the machine receive data from clients only, while all nodes receive from it. So no node can fetch from
        it."""
        for other in self._others(machine):
            self._fabric.cut(other, machine.setup.address)
        await self._while(2.0, 10.0)
        self._fabric.heal()

    async def _isolate(self, machine: SimMachine) -> None:
        """Cut the machine off from all nodes and clients, in both directions."""
        for other in [*self._others(machine), *self._clients]:
            self._fabric.cut(machine.setup.address, other)
            self._fabric.cut(other, machine.setup.address)
        await self._while(0.5, 12.0)
        self._fabric.heal()

    async def _slow_node(self, machine: SimMachine) -> None:
        seconds = self._random.choice((0.02, 0.2, 1.0))
        for other in self._others(machine):
            self._fabric.slow(machine.setup.address, other, seconds)
            self._fabric.slow(other, machine.setup.address, seconds)
        await self._while(0.5, 8.0)
        self._fabric.heal()

    # ---- its disk and its clock

    async def _fsync_stall(self, machine: SimMachine) -> None:
        machine.storage.stall(self._loop.time() + self._random.uniform(0.2, 8.0))
        await self._while(0.2, 8.0)

    async def _write_stall(self, machine: SimMachine) -> None:
        """Make every write in one log directory slow."""
        storage, random = machine.storage, self._stalls
        below = random.choice(self._setup.log_dirs)
        storage.slow_writes(random.choice((0.06, 0.3, 1.0)), below)
        await asyncio.sleep(random.uniform(1.0, 8.0))
        storage.slow_writes(0.0, below)

    async def _lost_directory(self, machine: SimMachine) -> None:
        """Replace the disk by an empty one if other machines have its data. The machine counts as broken until its
        replicas are restored."""
        if not others_have_all(machine, self._machines):
            return
        machine.stay_down()
        machine.lose_directory()
        await self._back(machine)
        while not is_whole(machine, self._machines):
            await asyncio.sleep(0.2)

    async def _disk_full(self, machine: SimMachine) -> None:
        machine.has_disk_trouble(True)
        machine.storage.leave_free(self._random.choice((0, 100, 3000)))
        await self._while(0.5, 6.0)
        machine.storage.mend()
        await self._restart_after_trouble(machine)

    async def _disk_error(self, machine: SimMachine) -> None:
        machine.has_disk_trouble(True)
        odds, below = self._random.choice((0.02, 0.2, 1.0)), ""
        if len(self._setup.log_dirs) > 1 and self._random.random() < 0.7:
            below = self._setup.log_dirs[-1]  # it does not have the metadata log
        machine.storage.fail(odds, below)
        await self._while(0.2, 4.0)
        machine.storage.mend()
        await self._restart_after_trouble(machine)

    async def _bad_file(self, machine: SimMachine) -> None:
        """Make some files of one partition unwritable, and no other files."""
        parents = [path for path in self._setup.log_dirs if machine.storage.find(path) is not None]
        directories = [f"{path}/{name}/" for path in parents for name in sorted(machine.storage.folder(path).names)]
        found = [path for path in directories if path[:-1].rpartition("-")[2].isdecimal()]
        if not found:
            return
        machine.has_disk_trouble(True)
        suffix = self._random.choice((".index", ".index", ".timeindex", ".log", ""))
        machine.storage.spoil(self._random.choice(found), suffix, self._random.choice((errno.ENOSPC, errno.EIO)))
        await self._while(1.0, 8.0)
        machine.storage.mend()
        await self._restart_after_trouble(machine)

    async def _short_descriptors(self, machine: SimMachine) -> None:
        """Leave few free file descriptors. Requests may fail, but no replica may go offline."""
        process = machine.process
        if process is None or process.node is None:
            return
        process.world.disk.leave_handles(self._random.choice((0, 0, 2, 9)))
        try:
            await self._while(0.5, 6.0)
        finally:
            process.world.disk.free_handles()
        await self._while(2.0, 2.0)
        if machine.process is process and not process.stopping:
            for why in process.node.broker.replication.hosting.lost():
                self._history.breach(f"{machine.name} was short of file descriptors, and {why}")

    async def _restart_after_trouble(self, machine: SimMachine) -> None:
        machine.stay_down()
        if self._random.random() < RESTART_ODDS:
            await machine.stop()
        else:
            machine.kill()
        machine.has_disk_trouble(False)
        await self._while(0.05, 1.0)
        if machine.process is None:
            machine.start()

    async def _clock_skew(self, machine: SimMachine) -> None:
        machine.skew(machine.skew_ms + self._random.choice((-30_000, -500, 500, 20_000)))
        await self._while(0.5, 5.0)
