"""While the logs of a killed node are recovered, its loop does everything else that it has to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from random import Random

import pytest

from kpybroker.broker.log_recovery import SAID_EVERY_MS, SLICE_MS, LogRecovery
from kpybroker.client.peer import Peer
from kpybroker.config import parse_config
from kpybroker.server.node import Node
from kpybroker.sim.cluster.cluster import Process, SimMachine
from kpybroker.sim.cluster.setup import NodeSetup
from kpybroker.sim.world.history import History
from kpybroker.sim.world.loop import Owner, VirtualLoop
from kpybroker.sim.world.network import Fabric, SimNetwork, Weather
from kpybroker.storage.dirs.log_dir import CLEAN_SHUTDOWN
from kpybroker.wire.rpc import create_topics, delete_topics
from kpybroker.world.real import RealWorld
from tests.asking import make, put
from tests.storage.compacting import VirtualWorld

ADDRESS, CLIENTS, CONTROLLERS, HTTP = "10.0.0.1", 9092, 9093, 9644
SETTINGS = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "listeners": f"PLAINTEXT://{ADDRESS}:{CLIENTS},CONTROLLER://{ADDRESS}:{CONTROLLERS}",
    "controller.quorum.voters": f"1@{ADDRESS}:{CONTROLLERS}",
    "log.dirs": "/data",
    "kpybroker.http.host": ADDRESS,
    "kpybroker.http.port": str(HTTP),
}
LOGS = 20
READ_S = 0.05


class Lab:
    """A machine whose node has been killed with LOGS logs. Each read of recovery takes READ_S on the disk's thread."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()  # type: ignore[abstract]
        self.history = History(self.loop.time)
        fabric = Fabric(self.loop, Random(1), self.history, Weather(stall_odds=0.0, split_odds=0.0))
        self.machine = SimMachine(NodeSetup(1, ADDRESS, SETTINGS), 1, self.loop, fabric, self.history)
        self.network = SimNetwork(fabric, "10.0.0.9", Owner("client"))

    def run(self, scenario: Callable[[Lab], Awaitable[None]]) -> None:
        self.loop.run_until_complete(self._play(scenario))
        assert self.history.breaches == []

    async def _play(self, scenario: Callable[[Lab], Awaitable[None]]) -> None:
        self.machine.start()
        await self.until_serving()
        peer = await self.dial(CLIENTS)
        await make(peer, "t", partitions=LOGS)
        for index in range(LOGS):
            assert (await put(peer, "t", b"x", index=index)).error_code == 0
        peer.close()
        self.machine.kill()
        self.machine.storage.set_pace(1.0, (READ_S, READ_S))
        await scenario(self)
        await self.machine.stop()

    async def until_serving(self) -> None:
        while self.machine.node is None:
            await asyncio.sleep(0.01)

    async def until_listening(self) -> None:
        """Wait until the controller's listener is open."""
        while True:
            try:
                transport, _ = await self.network.connect(asyncio.Protocol, ADDRESS, CONTROLLERS)
            except ConnectionRefusedError:
                await asyncio.sleep(READ_S / 10)
            else:
                transport.close()
                return

    async def dial(self, port: int) -> Peer:
        peer = await Peer.dial(self.network, ADDRESS, port)
        await peer.negotiate()
        return peer

    def ends(self) -> list[int]:
        """The ends of all logs that the node hosts."""
        assert self.machine.node is not None
        return [partition.log.end for partition in self.machine.node.broker.replication.hosting]

    async def is_healthy(self) -> bool:
        answer = asyncio.get_running_loop().create_future()

        class Asking(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                transport.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")

            def data_received(self, data: bytes) -> None:
                if not answer.done():
                    answer.set_result(data)

            def connection_lost(self, error: Exception | None) -> None:
                if not answer.done():
                    answer.set_result(b"")

        try:
            await self.network.connect(Asking, ADDRESS, HTTP)
        except OSError:
            return False
        return b" 200 " in await answer


def test_probes_are_answered_while_logs_are_recovered() -> None:
    async def scenario(lab: Lab) -> None:
        lab.machine.start()
        answers = 0
        while lab.machine.node is None:
            answers += await lab.is_healthy()
            await asyncio.sleep(READ_S / 5)
        assert answers >= 4 * LOGS, "the reads of each log leave time for five"
        assert lab.ends() == [1] * LOGS

    Lab().run(scenario)


def test_the_controller_works_while_logs_are_recovered() -> None:
    """It creates and deletes topics. Partitions are hosted according to the newest metadata, and nothing is left of
    those that were deleted during the recovery of their logs."""

    async def scenario(lab: Lab) -> None:
        lab.machine.start()
        await lab.until_listening()
        peer = await lab.dial(CONTROLLERS)
        await peer.ask("DeleteTopics", delete_topics.Request(topics=[delete_topics.DeleteTopicState(name="t")]))
        wanted = create_topics.CreatableTopic(name="t", num_partitions=2, replication_factor=1)
        await peer.ask("CreateTopics", create_topics.Request(topics=[wanted]))
        assert lab.machine.node is None
        peer.close()
        await lab.until_serving()
        assert lab.ends() == [0, 0]
        await asyncio.sleep(90)
        assert [name for name in VirtualWorld(lab.machine.storage).disk.list("/data") if name.startswith("t-")] == []

    Lab().run(scenario)


@pytest.mark.parametrize("after", range(1, LOGS, 6))
def test_a_stop_during_the_recovery_does_not_wait_for_it_and_is_not_clean(after: int) -> None:
    async def scenario(lab: Lab) -> None:
        machine, loop = lab.machine, lab.loop
        process = Process(machine, 99, machine.storage)
        with loop.acting(process.owner):
            starting = loop.create_task(Node.start(process.world, parse_config(SETTINGS)))
        await lab.until_listening()  # the recovery has begun
        await asyncio.sleep(after * READ_S)
        assert not starting.done()
        began = loop.time()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert loop.time() - began < LOGS * READ_S
        assert not process.world.disk.handles
        assert CLEAN_SHUTDOWN not in process.world.disk.list("/data")
        process.owner.die()
        machine.storage.warm()
        machine.start()
        await lab.until_serving()
        assert lab.ends() == [1] * LOGS

    Lab().run(scenario)


class Ticking(RealWorld):
    """A World with a clock that only work moves."""

    def __init__(self) -> None:
        super().__init__(1)
        self.ms = 0

    def steady_ms(self) -> int:
        return self.ms


def test_a_slice_of_recovery_is_short(caplog: pytest.LogCaptureFixture) -> None:
    """Other callbacks of the loop run after each slice, and progress is logged now and then."""
    world, longest, ended, turns = Ticking(), 0, [], 0

    def work() -> Generator[None, None, None]:
        for _ in range(100):
            world.ms += 3
            yield

    async def scenario() -> None:
        nonlocal longest, turns
        recovery = LogRecovery(world)
        failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        before = world.ms
        recovery.begin([("/", work()) for _ in range(40)], lambda: ended.append(world.ms), failed.set_result)
        while recovery.is_running:
            longest, before, turns = max(longest, world.ms - before), world.ms, turns + 1
            await asyncio.sleep(0)
        await recovery.wait(failed)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert longest < SLICE_MS + 3
    assert turns > 40 * 300 // (SLICE_MS + 3)
    assert ended == [40 * 300]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 40 * 300 // SAID_EVERY_MS + 1
    assert said[0].endswith("of 40 are done")
    assert said[-1] == "recovered 40 logs in 12000 ms"


def test_recovery_in_one_slice_needs_no_turn() -> None:
    def work() -> Generator[None, None, None]:
        yield

    async def scenario() -> None:
        recovery = LogRecovery(Ticking())
        recovery.begin([("/", work()) for _ in range(40)], pytest.fail, pytest.fail)
        assert not recovery.is_running

    asyncio.run(scenario())
