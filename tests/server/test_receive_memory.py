"""Receive memory depends on the received bytes rather than the announced size of a frame. Small frames and frames of
nodes have reserved shares."""

from __future__ import annotations

import asyncio
from struct import pack

import pytest

from kpybroker.server.connections.activity import FRAME_PATIENCE_S, WINDOW_S
from kpybroker.server.connections.receive_memory import (
    ASKED_A_TURN,
    EIGHTHS,
    GROWTH,
    IDLE_BUFFER_BYTES,
    LARGE,
    NODES,
    SMALL,
    SMALL_FRAME_BYTES,
    ReceiveMemory,
)
from kpybroker.server.node import Node
from kpybroker.sim.world.loop import VirtualLoop
from kpybroker.wire.api import by_name
from kpybroker.wire.frame import encode_request
from tests.asking import make, produced, put
from tests.server.line import Line, line
from tests.server.test_throttling import lasted
from tests.server.virtual import Dial, run_virtually

LIMIT = 16 << 20
MEMORY = {name: str(LIMIT) for name in ("queued.max.request.bytes", "socket.request.max.bytes", "message.max.bytes")}
SOON_S = 0.5
FRAME = {LARGE: SMALL_FRAME_BYTES + 1, SMALL: SMALL_FRAME_BYTES, NODES: SMALL_FRAME_BYTES}


class Waiting:
    """Counts how often it is resumed."""

    def __init__(self) -> None:
        self.asked = 0

    def go_on(self) -> None:
        self.asked += 1


def announcement(size: int) -> bytes:
    """The beginning of a Produce frame that announces this size."""
    return pack(">ihhih", size, 0, 9, 1, -1)


async def half_frames(node: Node, count: int, announced: int, sent: int) -> list[Line]:
    """Connections that have sent a part of a frame, which the node has read."""
    lines = [await line(node) for _ in range(count)]
    for one in lines:
        one.send(announcement(announced) + bytes(sent - 14))
    await asyncio.sleep(3)
    return lines


def test_an_announced_frame_takes_no_memory_from_others() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin = await dial("admin")
        await make(admin, "t")
        dribbling = [asyncio.ensure_future(each.dribble(1, 2.0)) for each in await half_frames(node, 20, LIMIT, 14)]
        assert node.server.memory.used_bytes == 0
        for size in (100, 5000, 60_000, 1_000_000, LIMIT // 2):
            told, took_s = await lasted(put(await dial("other"), "t", bytes(size)))
            assert (told.error_code, took_s < SOON_S) == (0, True), size
        for each in dribbling:
            each.cancel()

    run_virtually(scenario, MEMORY)


def test_a_buffer_grows_with_the_received_bytes() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        for sent in (14, IDLE_BUFFER_BYTES // 2 - 1, IDLE_BUFFER_BYTES // 2, 100_000, 1_000_000):
            (one,) = await half_frames(node, 1, 4_000_000, sent)
            assert node.server.memory.used_bytes <= max(sent * GROWTH, 4 * IDLE_BUFFER_BYTES)
            assert (node.server.memory.used_bytes > 0) == (sent >= 100_000), (
                "a small part fits into the buffer that each connection has"
            )
            one.close()
            await asyncio.sleep(1)
            assert node.server.memory.used_bytes == 0

    run_virtually(scenario, MEMORY)


@pytest.mark.parametrize("kind", [LARGE, SMALL, NODES])
def test_each_kind_has_its_share_and_one_frame_may_exceed_it(kind: int) -> None:
    async def whole() -> None:
        memory = ReceiveMemory(LIMIT)
        share = LIMIT * EIGHTHS[kind] // 8
        assert memory.take(Waiting(), share - 1, FRAME[kind], of_a_node=kind == NODES)
        assert memory.take(Waiting(), 1, FRAME[kind], of_a_node=kind == NODES), "at the limit"
        first, second = Waiting(), Waiting()
        assert memory.take(first, 10, FRAME[kind], of_a_node=kind == NODES), "one goes beyond"
        assert memory.take(first, 10, FRAME[kind], of_a_node=kind == NODES), "and on"
        assert not memory.take(second, 10, FRAME[kind], of_a_node=kind == NODES)
        assert (memory.waiting, memory.wanted_bytes, memory.is_short) == (1, 10, True)
        for other in range(kind + 1, NODES + 1):
            assert memory.take(Waiting(), 1, FRAME[other], of_a_node=other == NODES), "has more"
        memory.frame_ended(first)
        await asyncio.sleep(0)
        assert second.asked == 1
        assert memory.take(second, 10, FRAME[kind], of_a_node=kind == NODES), "it is the next to exceed the limit"

    asyncio.run(whole())


class WaitingAgain(Waiting):
    """Requests memory again when it is resumed, and has to wait again."""

    def __init__(self, memory: ReceiveMemory) -> None:
        super().__init__()
        self._memory = memory

    def go_on(self) -> None:
        super().go_on()
        self.ask()

    def ask(self) -> None:
        assert not self._memory.take(self, 1, FRAME[LARGE], of_a_node=False)


def test_closing_many_connections_resumes_few_in_each_turn_and_each_once() -> None:
    async def whole() -> None:
        memory = ReceiveMemory(LIMIT)
        for _ in range(2):  # the first uses the whole share, and the second exceeds it
            assert memory.take(Waiting(), LIMIT * EIGHTHS[LARGE] // 8, FRAME[LARGE], of_a_node=False)
        waiting = [WaitingAgain(memory) for _ in range(5 * ASKED_A_TURN)]
        for each in waiting:
            each.ask()
        closed, left = waiting[: 2 * ASKED_A_TURN], waiting[2 * ASKED_A_TURN :]
        for each in closed:
            memory.frame_ended(each)
        asked = [0]
        for _ in range(6):
            await asyncio.sleep(0)
            asked.append(sum(each.asked for each in waiting))
        assert asked == [number * ASKED_A_TURN for number in (0, 1, 2, 3, 3, 3, 3)]
        assert {each.asked for each in left} == {1}
        assert memory.waiting == len(left)
        await asyncio.sleep(1)  # this would never end if a connection were resumed repeatedly

    VirtualLoop().run_until_complete(whole())  # type: ignore[abstract]  # sockets, signals and processes


def test_small_frames_are_served_while_large_ones_hold_their_whole_share() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin = await dial("admin")
        await make(admin, "t")
        await half_frames(node, 8, 5 << 20, (5 << 20) - 1)
        assert node.server.memory.waiting > 0
        assert node.server.memory.used_bytes >= LIMIT * EIGHTHS[LARGE] // 8 - (5 << 20)
        told, took_s = await lasted(put(await dial("small"), "t", bytes(1_000_000)))
        assert (told.error_code, took_s < SOON_S) == (0, True)

    run_virtually(scenario, MEMORY)


def test_slow_partial_frames_are_closed_when_others_wait_and_steady_ones_stay() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        await make(await dial("admin"), "t")
        steady = await line(node)
        frame = memoryview(b"".join(encode_request(1, by_name["Produce"], 9, produced("t", bytes(14 << 20)), "steady")))

        async def send_steadily() -> None:
            tenth = int(len(frame) / (FRAME_PATIENCE_S - 3) / 10)
            for at in range(0, len(frame), tenth):
                steady.send(frame[at : at + tenth])
                await asyncio.sleep(0.1)

        sending = asyncio.ensure_future(send_steadily())
        slow = await half_frames(node, 4, 4 << 20, 3 << 20)
        dribbling = [asyncio.ensure_future(each.dribble(1, 1.0)) for each in slow]
        told, took_s = await lasted(put(await dial("large"), "t", bytes(6 << 20)))
        assert told.error_code == 0
        assert took_s < len(slow) * (WINDOW_S + 2) + FRAME_PATIENCE_S, "each of them may have a turn beyond the limit"
        await sending
        await asyncio.sleep(3 * WINDOW_S)
        assert node.server.memory.waiting == 0
        assert any(each.is_closed for each in slow)
        assert not steady.is_closed
        assert steady.received, "it was answered"
        for each in dribbling:
            each.cancel()

    run_virtually(scenario, MEMORY)


def test_a_slow_connection_is_served_while_memory_is_free() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        await make(await dial("admin"), "t")
        (slow,) = await half_frames(node, 1, 4_000_000, 1_000_000)
        dribbling = asyncio.ensure_future(slow.dribble(2000, 1.0))
        await asyncio.sleep(100 * WINDOW_S)
        assert not slow.is_closed
        dribbling.cancel()

    run_virtually(scenario, {**MEMORY, "connections.max.idle.ms": "60000"})


def test_a_slowly_growing_frame_does_not_keep_a_connection_from_being_idle() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        (slow,) = await half_frames(node, 1, 4_000_000, 20)
        dribbling = asyncio.ensure_future(slow.dribble(1, 1.0))
        await asyncio.sleep(55)
        assert not slow.is_closed
        await asyncio.sleep(10)
        assert slow.is_closed
        await dribbling

    run_virtually(scenario, {"connections.max.idle.ms": "60000"})
