"""One seed: a cluster and its clients, things that break, everything mended, and what is there against the contract."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import traceback
import warnings
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import process_time
from types import FrameType

from kpybroker.broker import OFFSETS_TOPIC
from kpybroker.errors import Damage, KafkaError, MalformedFrame
from kpybroker.sim import checks
from kpybroker.sim.abandoning import Abandoner
from kpybroker.sim.administering import Operator, create_topic, cut_small
from kpybroker.sim.caretaking import Caretaker
from kpybroker.sim.client import GROUP as GROUP_COORDINATOR
from kpybroker.sim.client import TRANSACTION, Client, Refused, Unanswered
from kpybroker.sim.cluster import SimMachine
from kpybroker.sim.consuming import Consumer
from kpybroker.sim.grouping import Committer, Member
from kpybroker.sim.history import History, Place
from kpybroker.sim.keeping import Bookkeeper, Keeper, TableReader
from kpybroker.sim.loop import Dead, Owner, Stuck, VirtualLoop
from kpybroker.sim.nemesis import Nemesis
from kpybroker.sim.network import Fabric
from kpybroker.sim.producing import Producer
from kpybroker.sim.remaking import Remaker
from kpybroker.sim.replays import replay_equals_live
from kpybroker.sim.setup import CLIENT_PORT, OUTPUTS, SHARERS_SESSION_MS, Setup
from kpybroker.sim.shares import Shares
from kpybroker.sim.sharing import Sharer
from kpybroker.sim.shifting import Shifter, check_directories, limit_moves
from kpybroker.sim.transacting import Transactor
from kpybroker.sim.transforming import TEAM, TWINS, Transformer
from kpybroker.sim.voting import Registrar
from kpybroker.sim.watch import Watch
from kpybroker.transactions.coordinator import TOPIC as TRANSACTION_TOPIC

BEGIN_LIMIT_S = 60.0
LIVENESS_LIMIT_S = 60.0
CPU_LIMIT_S = 20.0
"""Twenty times what a seed may cost: something turns round and round."""
CPU_GRACE_S = 2.0
"""For the callback that runs then: one that goes on longer never returns."""
GROUP = "group"
TWINS_ODDS = 0.4
"""How often two transactors share one transactional id, and fence each other off all the time."""
TEAM_ODDS = 0.5
SHARERS = "sharers"


@dataclass(slots=True)
class Outcome:
    """What a seed has shown."""

    seed: int
    breaches: list[str]
    digest: int
    cpu_s: float
    virtual_s: float
    counts: dict[str, int]
    details: list[str] = field(default_factory=list)
    """Tracebacks, where something was raised."""
    trace: list[str] = field(default_factory=list)


class _Listener(logging.Handler):
    """What the product logs goes into the trace; what it calls a bug is a breach."""

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
        self.loop = VirtualLoop()  # type: ignore[abstract]  # sockets, signals and processes have no place in it
        self.loop.on_problem = self.problem
        self.history = History(self.loop.time, keeps_trace=keeps_trace)
        if ends_at_breach:
            self.history.on_breach = self._end_soon
        self.details: list[str] = []
        self.fabric = Fabric(self.loop, Random(f"network {setup.seed}"), self.history, setup.weather)
        self.fabric.window_bytes = setup.window_bytes
        self.machines = [SimMachine(node, setup.seed, self.loop, self.fabric, self.history) for node in setup.nodes]
        for machine in self.machines:
            machine.storage.cold_odds = setup.cold_odds
            machine.storage.sync_s = setup.sync_s
        self._random = Random(f"workload {setup.seed}")
        self.clients: list[Client] = []
        self._registrar: Registrar | None = None
        self.remaker: Remaker | None = None
        self._work: list[asyncio.Task[None]] = []
        self.places: list[Place] = [(topic.name, index) for topic in setup.topics for index in range(topic.partitions)]
        self.worked = [place for place in self.places if place[0] != OUTPUTS]
        """Those that anybody may write to."""
        table = setup.table
        self.tables: list[Place] = [(table.name, index) for index in range(table.partitions)] if table else []
        """Those that are compacted."""
        self.shares = Shares(self.history, SHARERS, SHARERS_SESSION_MS / 1000)

    def problem(self, owner: Owner, text: str, raised: BaseException | None) -> None:
        """Something was raised where nothing may be."""
        if not owner.alive:
            return
        self.history.breach(f"{owner.name}: {text}: {raised!r}")
        if raised is not None and len(self.details) < 3:
            self.details.append("".join(traceback.format_exception(raised)))

    def run(self) -> Outcome:
        """From the first node's start to the last check. A run that breaks the contract says so in its outcome."""
        began_s = process_time()
        listener, product = _Listener(self), logging.getLogger("kpybroker")
        product.addHandler(listener)
        propagates, product.propagate = product.propagate, False
        overrun = signal.signal(signal.SIGPROF, self._overrun)
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S, CPU_GRACE_S)
        gc.disable()  # whatever a collector would end, it ends at the same place in every run
        if not gc.get_freeze_count():
            gc.freeze()  # the modules: what a run leaves behind is soon looked through without them
        try:
            self.loop.run_until_complete(self._play())
        except (Stuck, KafkaError, Damage, MalformedFrame, AssertionError) as end:
            if self.loop.turns_max:
                self.problem(self.loop.simulation, "the run ended early", end)
        except Dead:  # out of the loop itself; what there is to tell is told
            pass
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._end()
            gc.enable()
            signal.signal(signal.SIGPROF, overrun)
            product.removeHandler(listener)
            product.propagate = propagates
        history = self.history
        return Outcome(
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
        """Out of the run between two callbacks; out of one that never returns by force."""
        if self.loop.turns_max == 0:
            raise Dead
        self.history.breach(f"{self.loop.current.name} computes and computes: {CPU_LIMIT_S:.0f} s of CPU")
        self.details.append("".join(traceback.format_stack(frame)))
        self._end_soon()

    def _end_soon(self) -> None:
        self.loop.turns_max = 0

    def _end(self) -> None:
        for machine in self.machines:
            machine.wanted = False
            machine.kill("is switched off")
        for client in self.clients:
            client.owner.alive = False
            self.loop.bury(client.owner)
        self.loop.bury(self.loop.simulation)
        self.loop.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # what the killed had not begun yet is never awaited
            gc.collect()

    # ---- the play

    async def _play(self) -> None:
        for machine in self.machines:
            machine.start()
        watch = Watch(self.loop, self.machines, self.history)
        watching = self.loop.create_task(watch.run())
        if not await self._begin():
            return
        self._employ()
        nemesis = Nemesis(
            self.setup, self.machines, [client.network.address for client in self.clients], self.fabric, self.history
        )
        await nemesis.run()
        await nemesis.mend()
        rests = await self._everybody_goes_on() and await self._everything_is_shared() and await self._everybody_stops()
        if rests and await self._the_abandoned_ends():
            await self._check()
        watching.cancel()

    async def _check(self) -> None:
        """As a client, from inside, and both again after everything has been off and on."""
        await checks.check_all(self, self._client("auditor"))
        await check_directories(self.machines, self.history)
        if self._registrar is not None:
            self._registrar.check(self.machines, self.history)
        for machine in self.machines:
            if machine.node is not None and len(self.machines) == 1:
                await replay_equals_live(machine, self.history)
        for machine in self.machines:
            machine.wanted = False
            if "power_loss" in self.setup.faults and self.setup.outlives_power:
                machine.lose_power()
            elif self._random.random() < 0.5:
                machine.kill()
            else:
                await machine.stop()
        for machine in self.machines:
            machine.start()
        await checks.check_all(self, self._client("second auditor"))
        await check_directories(self.machines, self.history)

    def _client(self, name: str) -> Client:
        number = len(self.clients) + 1
        brokers = {node.node_id: (node.address, CLIENT_PORT) for node in self.setup.nodes}
        client = Client(name, f"10.0.1.{number}", self.setup.seed, self.fabric, brokers)
        self.clients.append(client)
        return client

    async def _begin(self) -> bool:
        """The topics of the workload are made before anything breaks."""
        client = self._client("founder")
        deadline = self.loop.time() + BEGIN_LIMIT_S
        to_do = [(topic.name, partial(create_topic, client, topic)) for topic in self.setup.topics]
        if self.setup.table is not None:
            to_do.append((self.setup.table.name, partial(create_topic, client, self.setup.table)))
            for name, kind in ((OFFSETS_TOPIC, GROUP_COORDINATOR), (TRANSACTION_TOPIC, TRANSACTION)):
                to_do.append((name, partial(cut_small, client, name, kind)))
        if self.setup.moves_bytes_s is not None:
            to_do.append(("the limit of moves", partial(limit_moves, client, self.setup.moves_bytes_s)))
        for name, work in to_do:
            while True:
                try:
                    await work()
                    break
                except (Unanswered, Refused) as failed:
                    if self.loop.time() > deadline:
                        self.history.breach(f"{name} could not be made in {BEGIN_LIMIT_S:.0f} s: {failed}")
                        return False
                    await asyncio.sleep(0.2)
        return True

    def _start(self, client: Client, work: object) -> None:
        with self.loop.acting(client.owner):
            task = self.loop.create_task(work.run())  # type: ignore[attr-defined]  # every worker has it
        task.add_done_callback(lambda done: self._worker_ended(client, done))
        self._work.append(task)

    def _worker_ended(self, client: Client, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (raised := task.exception()) is not None:
            self.problem(client.owner, "a client failed", raised)

    def _employ(self) -> None:
        setup, random, worked = self.setup, self._random, self.worked
        pace_s, tires_after = random.choice((0.25, 0.5, 1.0)), 400
        if len(setup.nodes) > 1:  # a seed may cost a second of CPU
            pace_s, tires_after = 2 * pace_s, 50
        for number in range(setup.producers):
            acks, idempotent = random.choice(((-1, True), (-1, True), (-1, False), (1, False)))
            client = self._client(f"p{number}")
            place = random.choice(worked)
            self._start(
                client,
                Producer(client, place, acks=acks, idempotent=idempotent, pace_s=pace_s, tires_after=tires_after),
            )
        for number in range(setup.consumers):
            client = self._client(f"c{number}")
            places = [place for place in worked if random.random() < 0.7] or worked
            max_wait_ms = random.choice((0, 100, 500))
            committed = setup.transactors > 0 and random.random() < 0.7
            self._start(client, Consumer(client, places, max_wait_ms=max_wait_ms, pace_s=pace_s, committed=committed))
        for number in range(setup.members):
            client = self._client(f"m{number}")
            group, shares = (SHARERS, self.shares) if setup.sharers else (GROUP, None)
            self._start(client, Member(client, group, worked, pace_s=1.0, shares=shares))
        for number in range(setup.committers):
            client = self._client(f"k{number}")
            self._start(client, Committer(client, f"lone{number}", random.choice(worked), pace_s=pace_s))
        client = self._client("caretaker")
        self._start(client, Caretaker(client, random.choice(worked), pace_s=6.0))
        client = self._client("operator")
        self._start(client, Operator(client, setup.replicas, pace_s=6.0))
        self._employ_sharers()
        self._employ_transactors(pace_s)
        self._employ_keepers(pace_s, tires_after)
        if setup.remakes:
            client = self._client("remaker")
            self.remaker = Remaker(client, setup.replicas, pace_s=3.0)
            self._start(client, self.remaker)
        if len(setup.log_dirs) > 1:
            client = self._client("shifter")
            self._start(client, Shifter(client, [*self.places, *self.tables], setup.log_dirs, pace_s=2.0))
        if setup.voters_change:
            client = self._client("registrar")
            addresses = {node.node_id: node.address for node in setup.nodes}
            self._registrar = Registrar(client, addresses, pace_s=3.0)
            self._start(client, self._registrar)

    def _employ_sharers(self) -> None:
        topics = sorted({name for name, _ in self.worked})
        for number in range(self.setup.sharers):
            client = self._client(f"s{number}")
            self._start(client, Sharer(client, SHARERS, topics, self.shares, pace_s=1.0))

    def _employ_transactors(self, pace_s: float) -> None:
        are_twins = self.setup.transactors > 1 and self._random.random() < TWINS_ODDS
        for number in range(self.setup.transactors):
            client = self._client(f"t{number}")
            client.twins = transactional_id = "twins" if are_twins else client.name
            self._start(client, Transactor(client, transactional_id, self.worked, pace_s=pace_s))
        is_team = self.setup.transformers > 0 and self._random.random() < TEAM_ODDS
        group, sources = (TEAM, self.worked) if is_team else (TWINS, self.worked[:1])
        for number in range(self.setup.transformers):
            client = self._client(f"x{number}")
            client.twins = client.name if is_team else TWINS
            pace_s = min(pace_s, 1.0)
            worker = Transformer(client, group, sources, (OUTPUTS, 0), is_member=is_team, pace_s=2 * pace_s)
            self._start(client, worker)

    def _employ_keepers(self, pace_s: float, tires_after: int) -> None:
        setup, places = self.setup, self.tables
        if setup.forgetting is None:
            return
        random = Random(f"keepers {setup.seed}")
        for number in range(setup.keepers):
            client, is_idempotent = self._client(f"w{number}"), random.random() < 0.7
            place = random.choice(places)
            self._start(
                client,
                Keeper(client, place, idempotent=is_idempotent, pace_s=pace_s, tires_after=tires_after),
            )
        for number in range(setup.bookkeepers):
            client = self._client(f"b{number}")
            self._start(client, Bookkeeper(client, places, pace_s=pace_s))
        client = self._client("table reader")
        self._start(client, TableReader(client, places, setup.forgetting, pace_s=4.0))

    async def _everybody_goes_on(self) -> bool:
        """Liveness: with everything mended, every client soon has a success."""
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
            self.history.breach(f"{client.name} got nothing done in {LIVENESS_LIMIT_S:.0f} s after all was mended")
        return False

    async def _everything_is_shared(self) -> bool:
        """At rest, every partition has an owner."""
        if not self.setup.sharers:
            return True
        deadline = self.loop.time() + LIVENESS_LIMIT_S
        while left := self.shares.without_owner(self.worked):
            if self.loop.time() > deadline:
                self.history.breach(f"nobody has {left} in {LIVENESS_LIMIT_S:.0f} s after all was mended")
                return False
            await asyncio.sleep(0.5)
        return True

    async def _the_abandoned_ends(self) -> bool:
        """Time-outs are kept, whatever is done to the clocks."""
        if "clock_skew" not in self.setup.faults:
            return True
        random = Random(f"abandoned {self.setup.seed}")
        return await Abandoner(self._client("abandoner"), self.worked, self.machines, random).run()

    async def _everybody_stops(self) -> bool:
        for client in self.clients:
            client.stopping = True
        ended, late = await asyncio.wait(self._work, timeout=LIVENESS_LIMIT_S)
        for number, task in enumerate(self._work):
            if task in late:
                self.history.breach(f"worker {number} did not finish in {LIVENESS_LIMIT_S:.0f} s")
        return not late and len(ended) == len(self._work)
