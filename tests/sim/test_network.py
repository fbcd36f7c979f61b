"""Tests of the simulated network: streams stay intact, broken links hold data back, and dead hosts close connections or
are silent."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, cast

import pytest

from kpybroker.sim.world.history import History
from kpybroker.sim.world.loop import Owner, VirtualLoop
from kpybroker.sim.world.network import Fabric, SimNetwork, Weather
from kpybroker.sim.world.stream import SimTransport

ROUGH = Weather(0.01, 0.02, 0.2, 2.0, 0.6)
ONE, OTHER, PORT = "10.0.0.1", "10.0.0.2", 9092


class Collector(asyncio.Protocol):
    """Collects the received data, and how the connection ended."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.ended: list[Exception | None] = []
        self.is_paused = False
        self.transport: SimTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(SimTransport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.append(exc)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False


class Buffered(asyncio.BufferedProtocol):
    """The same, with its own small buffer."""

    def __init__(self) -> None:
        self.received = bytearray()
        self._buffer = bytearray(7)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]


class Stage:
    """Two hosts, a listener on one of them, and a process on each."""

    def __init__(self, seed: int = 1, weather: Weather = ROUGH) -> None:
        self.loop = VirtualLoop()  # type: ignore[abstract]
        self.history = History(self.loop.time)
        self.fabric = Fabric(self.loop, Random(seed), self.history, weather)
        self.server, self.client = Owner("server"), Owner("client")
        self.listens = SimNetwork(self.fabric, ONE, self.server)
        self.dials = SimNetwork(self.fabric, OTHER, self.client)
        self.accepted: list[Collector] = []

    def accept(self) -> Collector:
        self.accepted.append(Collector())
        return self.accepted[-1]

    async def dial(self) -> Collector:
        _, protocol = await self.dials.connect(Collector, ONE, PORT)
        assert isinstance(protocol, Collector)
        return protocol

    def run(self, play: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(play)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_whole_and_in_order(seed: int) -> None:
    stage, random = Stage(seed), Random(seed)
    stage.fabric.window_bytes = random.choice((10, 1000, 65536))
    sent = random.randbytes(5000)
    kept = Buffered()

    async def play() -> None:
        await stage.listens.listen(lambda: kept, "", PORT)
        near = await stage.dial()
        at = 0
        while at < len(sent):
            size = random.randint(1, 900)
            near.transport.write(sent[at : at + size])
            at += size
            await asyncio.sleep(random.random() * 0.01)
        near.transport.close()
        await asyncio.sleep(4000)

    stage.run(play())
    assert bytes(kept.received) == sent


def test_a_reader_that_pauses_stops_its_writer() -> None:
    stage = Stage(weather=Weather())

    async def play() -> None:
        await stage.listens.listen(stage.accept, "", PORT)
        near = await stage.dial()
        await asyncio.sleep(1)
        far = stage.accepted[0]
        far.transport.pause_reading()
        for _ in range(40):
            near.transport.write(bytes(10_000))
        await asyncio.sleep(10)
        assert near.is_paused
        assert not far.received
        far.transport.resume_reading()
        await asyncio.sleep(10)
        assert len(far.received) == 400_000
        assert not near.is_paused

    stage.run(play())


def test_a_cut_link_holds_data_back_and_delivers_it_when_restored() -> None:
    stage = Stage()

    async def play() -> None:
        await stage.listens.listen(stage.accept, "", PORT)
        near = await stage.dial()
        await asyncio.sleep(1)
        stage.fabric.cut(OTHER, ONE)
        near.transport.write(b"patience")
        stage.accepted[0].transport.write(b"the other way is open")
        await asyncio.sleep(100)
        assert not stage.accepted[0].received
        assert near.received == b"the other way is open"
        stage.fabric.heal()
        await asyncio.sleep(10)
        assert stage.accepted[0].received == b"patience"

    stage.run(play())


def test_dialling_a_closed_port_is_refused_and_a_silent_host_times_out() -> None:
    stage = Stage()

    async def play() -> None:
        with pytest.raises(ConnectionRefusedError):
            await stage.dial()
        stage.fabric.power(ONE, False)
        began = stage.loop.time()
        with pytest.raises(OSError, match="does not respond"):
            await stage.dial()
        assert stage.loop.time() - began > 60

    stage.run(play())


def test_a_killed_process_closes_its_streams_but_a_host_without_power_does_not() -> None:
    stage = Stage()

    async def play() -> None:
        await stage.listens.listen(stage.accept, "", PORT)
        told = await stage.dial()
        await asyncio.sleep(5)
        stage.server.alive = False
        stage.fabric.kill(stage.server, ONE)
        await asyncio.sleep(5)
        assert len(told.ended) == 1
        stage.server.alive = True
        await stage.listens.listen(stage.accept, "", PORT)
        silent = await stage.dial()
        await asyncio.sleep(5)
        stage.fabric.power(ONE, False)
        stage.server.alive = False
        stage.fabric.kill(stage.server, ONE)
        silent.transport.write(b"anybody there?")
        await asyncio.sleep(100)
        assert silent.ended == []
        stage.fabric.power(ONE, True)
        await asyncio.sleep(5)
        assert isinstance(silent.ended[0], ConnectionResetError)

    stage.run(play())


def test_the_same_seed_is_the_same_run() -> None:
    digests = []
    for _ in range(2):
        stage = Stage(7)

        async def play(stage: Stage = stage) -> None:
            await stage.listens.listen(stage.accept, "", PORT)
            near = await stage.dial()
            for number in range(50):
                near.transport.write(b"%d" % number)
                await asyncio.sleep(0.01)

        stage.run(play())
        digests.append(stage.history.digest)
    assert digests[0] == digests[1]
