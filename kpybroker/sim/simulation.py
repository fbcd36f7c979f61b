"""Runs one seed: starts a cluster and its clients, injects faults, repairs them, and checks the guarantees."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import process_time
from types import FrameType

from kpybroker.errors import Damage, KafkaError, MalformedFrame
from kpybroker.sim.actors.actor import Preparation
from kpybroker.sim.actors.catalog import ACTORS
from kpybroker.sim.actors.consumer_group import GROUP as SHARED_GROUP
from kpybroker.sim.checks import checks
from kpybroker.sim.checks.replays import replay_equals_live
from kpybroker.sim.checks.watch import Watch
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.log_dir_moves import check_directories
from kpybroker.sim.clients.run import Work
from kpybroker.sim.clients.topic_admin import create_topic
from kpybroker.sim.cluster.cluster import SimMachine
from kpybroker.sim.cluster.setup import CLIENT_PORT, CONSUMER_MEMBERS_SESSION_MS, OUTPUTS, Setup
from kpybroker.sim.faults.nemesis import Nemesis
from kpybroker.sim.laws.assignment_law import PartitionOwnership
from kpybroker.sim.workload import start_clients
from kpybroker.sim.world.history import History
from kpybroker.sim.world.loop import Dead, Owner, Stuck, VirtualLoop
from kpybroker.sim.world.network import Fabric
from kpybroker.topics import TopicPartition

BEGIN_LIMIT_S = 60.0
LIVENESS_LIMIT_S = 60.0
CPU_LIMIT_S = 20.0
"""Twenty times the CPU time that a seed may need. A seed that exceeds it has an endless loop."""
CPU_GRACE_S = 2.0
"""The additional CPU time of the callback that is running when the limit is reached. A callback that needs more would
never return."""


@contextlib.contextmanager
def _cpu_limit(overrun: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `overrun` when CPU_LIMIT_S is reached, and again whenever CPU_GRACE_S have passed. Windows has no signal for
    this: there, an endless loop does not end."""
    if sys.platform == "win32":
        yield
        return
    before = signal.signal(signal.SIGPROF, overrun)
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S, CPU_GRACE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass(slots=True)
class RunOutcome:
    """The result of one seed."""

    seed: int
    breaches: list[str]
    digest: int
    cpu_s: float
    virtual_s: float
    counts: dict[str, int]
    details: list[str] = field(default_factory=list)
    """Tracebacks of unexpected exceptions."""
    trace: list[str] = field(default_factory=list)


class _Listener(logging.Handler):
    """Copies the product's log to the trace. A logged bug is a breach."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(logging.WARNING)
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        simulation, text = self._simulation, record.getMessage()
        simulation.history.note("log", f"{simulation.loop.current.name}: {text}")
        if record.exc_info or text.startswith("bug"):
            raised = record.exc_info[1] if record.exc_info else None
            simulation.problem(simulation.loop.current, text, raised)


class Simulation:
    """One run of one setup."""

    def __init__(self, setup: Setup, *, keeps_trace: bool = False, ends_at_breach: bool = False) -> None:
        self.setup = setup
        # without sockets, signals and processes
        self.loop = VirtualLoop(self.problem)  # type: ignore[abstract]
        on_breach = self.loop.end_soon if ends_at_breach else lambda: None
        self.history = History(self.loop.time, keeps_trace=keeps_trace, on_breach=on_breach)
        self.details: list[str] = []
        self.fabric = Fabric(self.loop, Random(f"network {setup.seed}"), self.history, setup.weather)
        self.fabric.narrow(setup.window_bytes)
        self.machines = [SimMachine(node, setup.seed, self.loop, self.fabric, self.history) for node in setup.nodes]
        for machine in self.machines:
            machine.storage.set_pace(setup.cold_odds, setup.sync_s)
        self.random = Random(f"workload {setup.seed}")
        self.pace_s, self.slows_after = self.random.choice((0.25, 0.5, 1.0)), 400
        if len(setup.nodes) > 1:  # a seed may take a second of CPU time
            self.pace_s, self.slows_after = 2 * self.pace_s, 50
        self.clients: list[SimClient] = []
        self._work: list[asyncio.Task[None]] = []
        self.places: list[TopicPartition] = [
            (topic.name, index) for topic in setup.topics for index in range(topic.partitions)
        ]
        self.writable = [place for place in self.places if place[0] != OUTPUTS]
        """Partitions to which every client may write."""
        table = setup.table
        self.tables: list[TopicPartition] = [(table.name, index) for index in range(table.partitions)] if table else []
        """Compacted partitions."""
        self.ownership = PartitionOwnership(self.history, SHARED_GROUP, CONSUMER_MEMBERS_SESSION_MS / 1000)
        self.actors = [actor(self) for actor in ACTORS if actor.plays(setup)]

    def problem(self, owner: Owner, text: str, raised: BaseException | None) -> None:
        """Record a breach: an exception was raised where no exception is allowed."""
        if not owner.alive:
            return
        self.history.breach(f"{owner.name}: {text}: {raised!r}")
        if raised is not None and len(self.details) < 3:
            self.details.append("".join(traceback.format_exception(raised)))

    def run(self) -> RunOutcome:
        """Run from the start of the first node to the last check. The outcome lists all breaches of the guarantees."""
        began_s = process_time()
        listener, product = _Listener(self), logging.getLogger("kpybroker")
        product.addHandler(listener)
        propagates, product.propagate = product.propagate, False
        gc.disable()  # the garbage collector may close coroutines, which must happen at the same point in every run
        if not gc.get_freeze_count():
            gc.freeze()  # so that the collection after a run does not scan the modules
        try:
            with _cpu_limit(self._overrun):
                self.loop.run_until_complete(self._play())
        except (Stuck, KafkaError, Damage, MalformedFrame, AssertionError) as end:
            if self.loop.turns_max:
                self.problem(self.loop.simulation, "the run ended early", end)
        except Dead:  # the loop itself raised it, and the breach is already recorded
            pass
        finally:
            self._end()
            gc.enable()
            product.removeHandler(listener)
            product.propagate = propagates
        history = self.history
        return RunOutcome(
            seed=self.setup.seed,
            breaches=history.breaches,
            digest=history.digest,
            cpu_s=process_time() - began_s,
            virtual_s=history.now_s,
            counts=history.counts,
            details=self.details,
            trace=history.trace,
        )

    def _overrun(self, _: int, frame: FrameType | None) -> None:
        """End the run after the current callback. The second signal ends a callback that does not return."""
        if self.loop.turns_max == 0:
            raise Dead
        self.history.breach(f"{self.loop.current.name} does not stop computing: {CPU_LIMIT_S:.0f} s of CPU")
        self.details.append("".join(traceback.format_stack(frame)))
        self.loop.end_soon()

    def _end(self) -> None:
        for machine in self.machines:
            machine.stay_down()
            machine.kill("is powered off")
        for client in self.clients:
            client.owner.die()
            self.loop.bury(client.owner)
        self.loop.bury(self.loop.simulation)
        self.loop.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # coroutines of killed processes are never awaited
            gc.collect()

    # ---- the run

    async def _play(self) -> None:
        for machine in self.machines:
            machine.start()
        watch = Watch(self.loop, self.machines, self.history)
        watching = self.loop.create_task(watch.run())
        if not await self._begin():
            return
        start_clients(self)
        for actor in self.actors:
            actor.start()
        nemesis = Nemesis(
            self.setup, self.machines, [client.network.address for client in self.clients], self.fabric, self.history
        )
        await nemesis.run()
        await nemesis.mend()
        rests = await self._all_clients_progress() and await self._all_actors_rest() and await self._all_clients_stop()
        if rests and await self._all_actors_conclude():
            await self._check()
        watching.cancel()

    async def _check(self) -> None:
        """Check with requests and the nodes' internal state, and do both again after a restart of all machines."""
        more: dict[str, checks.Check] = {actor.checks: actor.check for actor in self.actors if actor.checks}
        await checks.check_all(self, self.client("auditor"), more)
        await check_directories(self.machines, self.history)
        for actor in self.actors:
            actor.look()
        for machine in self.machines:
            if machine.node is not None and len(self.machines) == 1:
                await replay_equals_live(machine, self.history)
        for machine in self.machines:
            machine.stay_down()
            if "power_loss" in self.setup.faults and self.setup.outlives_power:
                machine.lose_power()
            elif self.random.random() < 0.5:
                machine.kill()
            else:
                await machine.stop()
        for machine in self.machines:
            machine.start()
        await checks.check_all(self, self.client("second auditor"), more)
        await check_directories(self.machines, self.history)
        for actor in self.actors:
            actor.look()

    def client(self, name: str) -> SimClient:
        number = len(self.clients) + 1
        brokers = {node.node_id: (node.address, CLIENT_PORT) for node in self.setup.nodes}
        client = SimClient(name, f"10.0.1.{number}", self.setup.seed, self.fabric, brokers)
        self.clients.append(client)
        for actor in self.actors:
            actor.identify(client)
        return client

    async def _begin(self) -> bool:
        """Create the topics of the workload before any fault."""
        client = self.client("founder")
        deadline = self.loop.time() + BEGIN_LIMIT_S
        to_do: list[Preparation] = [(topic.name, partial(create_topic, client, topic)) for topic in self.setup.topics]
        for actor in self.actors:
            to_do = actor.foundations(client) + to_do + actor.preparations(client)
        for name, work in to_do:
            while True:
                try:
                    await work()
                    break
                except (Unanswered, Refused) as failed:
                    if self.loop.time() > deadline:
                        self.history.breach(f"{name} could not be created within {BEGIN_LIMIT_S:.0f} s: {failed}")
                        return False
                    await asyncio.sleep(0.2)
        return True

    def start(self, client: SimClient, work: Work) -> None:
        with self.loop.acting(client.owner):
            task = self.loop.create_task(work.run())
        task.add_done_callback(lambda done: self._worker_ended(client, done))
        self._work.append(task)

    def _worker_ended(self, client: SimClient, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (raised := task.exception()) is not None:
            self.problem(client.owner, "a client failed", raised)

    async def _all_clients_progress(self) -> bool:
        """Check that every client makes progress soon after all faults are repaired (liveness)."""
        mended_at = self.loop.time()
        deadline = mended_at + LIVENESS_LIMIT_S
        waiting = [client for client in self.clients if client.name != "founder"]
        while self.loop.time() < deadline:
            going = {client.twins for client in self.clients if client.succeeded_at_s > mended_at}
            waiting = [client for client in waiting if client.twins not in going]
            if not waiting:
                return True
            await asyncio.sleep(0.5)
        for client in waiting:
            self.history.breach(
                f"{client.name} got nothing done within {LIVENESS_LIMIT_S:.0f} s after all faults were repaired"
            )
        return False

    async def _all_actors_rest(self) -> bool:
        for actor in self.actors:
            if not await actor.rest():
                return False
        return True

    async def _all_actors_conclude(self) -> bool:
        for actor in self.actors:
            if not await actor.conclude():
                return False
        return True

    async def _all_clients_stop(self) -> bool:
        for client in self.clients:
            client.stop()
        ended, late = await asyncio.wait(self._work, timeout=LIVENESS_LIMIT_S)
        for number, task in enumerate(self._work):
            if task in late:
                self.history.breach(f"worker {number} did not finish within {LIVENESS_LIMIT_S:.0f} s")
        return not late and len(ended) == len(self._work)
