"""Simulated machines that run the product's own `Node`. They can start, stop and kill it, and lose power."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from kpybroker.config import parse_config
from kpybroker.errors import ConfigError
from kpybroker.server.node import Node
from kpybroker.sim.cluster.setup import NodeSetup
from kpybroker.sim.world.disk import SimDisk
from kpybroker.sim.world.history import WALL_BEGINS_MS, History
from kpybroker.sim.world.loop import Owner, VirtualLoop
from kpybroker.sim.world.network import Fabric, SimNetwork
from kpybroker.sim.world.storage import Storage
from kpybroker.world.expiry_clock import ExpiryClock

RESTART_AFTER_S = 1.0
STOP_PATIENCE_S = 30.0


class SimWorld:
    """The `World` of one process: clock, random numbers, network and disk."""

    def __init__(self, machine: SimMachine, owner: Owner, number: int, storage: Storage) -> None:
        self._machine = machine
        self.expiry = ExpiryClock(self.steady_ms)
        self.random = Random(f"{machine.seed} {machine.setup.node_id} {number}")
        self.network = SimNetwork(machine.fabric, machine.setup.address, owner)
        self.disk = SimDisk(storage, machine.loop, owner, number, Random(self.random.random()), self.wall_ms)
        self._secrets = Random(f"{machine.seed} secrets of {machine.setup.node_id} {number}")

    def secret_bytes(self, size: int) -> bytes:
        return self._secrets.randbytes(size)

    def wall_ms(self) -> int:
        return self._machine.wall_ms()

    def steady_ms(self) -> int:
        return int(self._machine.loop.time() * 1000)


class Process:
    """One run of a node, from its start to its end."""

    def __init__(self, machine: SimMachine, number: int, storage: Storage) -> None:
        self.owner = Owner(f"node {machine.setup.node_id} run {number}")
        self.world = SimWorld(machine, self.owner, number, storage)
        self.node: Node | None = None
        """None before it has started."""
        self.stopping = False


class SimMachine:
    """A machine with a disk, a clock, a network address, and the process of its node, if it is running."""

    def __init__(self, setup: NodeSetup, seed: int, loop: VirtualLoop, fabric: Fabric, history: History) -> None:
        self.setup = setup
        self.seed = seed
        self.loop = loop
        self.fabric = fabric
        self.history = history
        self.storage = Storage()
        self.storage.folder("/")
        self.random = Random(f"{seed} machine {setup.node_id}")
        self.skew_ms = 0
        self.process: Process | None = None
        self.wanted = True
        """Whether a process that exits on its own is started again."""
        self.had_disk_trouble = False
        self._runs = 0
        self._config = parse_config(setup.properties)

    @property
    def name(self) -> str:
        return f"node {self.setup.node_id}"

    @property
    def node(self) -> Node | None:
        """The node; None if it has not started or is stopping."""
        process = self.process
        return None if process is None or process.stopping or not process.owner.alive else process.node

    def wall_ms(self) -> int:
        return WALL_BEGINS_MS + round(self.loop.time() * 1000) + self.skew_ms

    def stay_down(self) -> None:
        """Keep the process from being started again when it ends."""
        self.wanted = False

    def skew(self, skew_ms: int) -> None:
        """Set the wall clock ahead of the others (or behind, if negative)."""
        self.skew_ms = skew_ms

    def has_disk_trouble(self, on: bool) -> None:
        self.had_disk_trouble = on

    def mend(self) -> None:
        """Remove all faults of disk, clock and process."""
        self.storage.mend()
        self.skew_ms = 0
        self.wanted = True
        self.put_out_fuse()
        if self.process is not None:
            self.loop.go_on(self.process.owner)

    # ---- starting and stopping

    def start(self) -> None:
        """Switch the machine on and start the process."""
        assert self.process is None, "the process is already running"
        self.wanted = True
        self.fabric.power(self.setup.address, True)
        self._runs += 1
        process = self.process = Process(self, self._runs, self.storage)
        self.history.note("node", f"{self.name} starts, run {self._runs}")
        with self.loop.acting(process.owner):
            running = self.loop.create_task(self._run(process))
        running.add_done_callback(lambda done: self._crashed(process, done))

    async def _run(self, process: Process) -> None:
        try:
            process.node = await Node.start(process.world, self._config)
        except ConfigError as problem:
            self._end(process, f"does not start: {problem}")
            return
        self.history.note("node", f"{self.name} serves")
        why = await asyncio.shield(process.node.failed)
        if process.stopping:
            return  # a node is stopped only once
        process.stopping = True
        await process.node.stop()
        self._end(process, f"gave up: {why}")

    def _crashed(self, process: Process, running: asyncio.Task[None]) -> None:
        """Record a crash: any exception of a start or stop other than ConfigError."""
        if process.owner.alive and not running.cancelled() and (raised := running.exception()) is not None:
            self.loop.on_problem(process.owner, "the node crashed", raised)
            self._end(process, "crashed")

    def _end(self, process: Process, why: str) -> None:
        """Clean up after a process that exited on its own, and start it again after a while."""
        self.history.note("node", f"{self.name} {why}")
        self.history.count("ended by itself")
        self.loop.soon_for(self.loop.simulation, self._ended, process)

    def _ended(self, process: Process) -> None:
        if self.process is process:
            self._bury(process)
            self.loop.call_later(RESTART_AFTER_S, self._start_again)

    def _start_again(self) -> None:
        if self.wanted and self.process is None:
            self.start()

    def kill(self, why: str = "is killed") -> None:
        """SIGKILL the process. The data that it wrote stays in the page cache."""
        if self.process is not None:
            self.history.note("node", f"{self.name} {why}")
            self._bury(self.process)

    def _bury(self, process: Process) -> None:
        process.owner.die()
        self.fabric.kill(process.owner, self.setup.address)
        process.world.disk.let_go()
        self.loop.bury(process.owner)
        self.process = None

    def lose_power(self) -> None:
        """Cut the power: unsynced data may be lost, and peers receive neither FIN nor RST."""
        self.fabric.power(self.setup.address, False)
        self.kill("loses power")
        lost = self.storage.lose_power(self.random)
        self.history.note("disk", f"{self.name} lost {lost} changes")
        self.history.count("changes lost", lost)

    def lose_directory(self) -> None:
        """Kill the process and replace the disk by an empty one."""
        self.kill("loses its disk")
        self.storage.lose_everything()
        self.history.count("directories lost")

    def light_fuse(self, changes: int, *, takes_power: Callable[[], bool]) -> None:
        """Kill the process in the middle of the write that follows `changes` other changes of the disk."""
        process = self.process
        if process is None:
            return

        def burnt() -> None:
            self.history.note("node", f"{self.name} dies in a change of its disk")
            self.loop.soon_for(self.loop.simulation, self._burnt, process, takes_power)

        process.world.disk.light_fuse(changes, burnt)

    def put_out_fuse(self) -> None:
        if self.process is not None:
            self.process.world.disk.put_out_fuse()

    def _burnt(self, process: Process, takes_power: Callable[[], bool]) -> None:
        if self.process is not process:
            return
        if takes_power():
            self.lose_power()
        else:
            self.kill("is killed by its fuse")
        self.loop.call_later(RESTART_AFTER_S, self._start_again)

    async def stop(self) -> None:
        """SIGTERM, followed by SIGKILL if the process does not end in time."""
        process = self.process
        if process is None or process.node is None or process.stopping:
            self.kill("is killed while starting or stopping")
            return
        process.stopping = True
        self.history.note("node", f"{self.name} is asked to stop")
        with self.loop.acting(process.owner):
            ending = self.loop.create_task(process.node.stop())
        deadline = self.loop.time() + STOP_PATIENCE_S
        while not ending.done() and process.owner.alive and self.loop.time() < deadline:
            await asyncio.sleep(0.05)
        if self.process is process:
            self.kill("has stopped" if ending.done() else "did not stop, is killed")

    def pause(self, on: bool) -> None:
        """Suspend the process (SIGSTOP) if `on`, else continue it (SIGCONT)."""
        if self.process is not None:
            self.history.note("node", f"{self.name} is {'halted' if on else 'resumed'}")
            if on:
                self.loop.halt(self.process.owner)
            else:
                self.loop.go_on(self.process.owner)
