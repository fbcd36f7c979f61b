"""A client that sends many requests at once does not delay other clients, because each turn is limited in time."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path
from typing import Any

from kpybroker.config import parse_config
from kpybroker.server.node import Node
from kpybroker.wire.api import Api, by_name
from kpybroker.wire.frame import encode_request
from kpybroker.wire.rpc import metadata
from kpybroker.world.real import RealWorld
from tests.serving import SMALL, dialled

REQUESTS = 60
STEP_MS = 2


class SteppingWorld(RealWorld):
    """A World whose clock advances by STEP_MS at each read while `steps` is set."""

    def __init__(self) -> None:
        super().__init__(7)
        self.steps = False
        self.stepped_ms = 0

    def steady_ms(self) -> int:
        if self.steps:
            self.stepped_ms += STEP_MS
        return super().steady_ms() + self.stepped_ms


def frames(count: int) -> bytes:
    api = by_name["Metadata"]
    return b"".join(encode_request(1, api, api.max, metadata.Request(topics=[]))) * count


def test_a_few_of_the_requests_sent_at_once_begin_in_each_turn(tmp_path: Path) -> None:
    async def whole() -> None:
        world = SteppingWorld()
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), **SMALL}
        node = await Node.start(world, parse_config(settings))
        try:
            async with dialled(node):
                route = node.server.dispatcher.routes
                reader, writer = await asyncio.open_connection(*node.bootstrap.split(":"))
                world.steps = True
                writer.write(frames(REQUESTS))
                most = before = 0
                while before < REQUESTS:
                    await asyncio.sleep(0)
                    count = route[by_name["Metadata"].key].count if by_name["Metadata"].key in route else 0
                    most, before = max(most, count - before), count
                world.steps = False
                assert most <= 5
                for _ in range(REQUESTS):
                    await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                writer.close()
        finally:
            await node.stop()
            world.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_request_that_is_cancelled_at_its_first_wait_leaves_nothing_unawaited(tmp_path: Path) -> None:
    async def whole() -> None:
        world = RealWorld(7)
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), **SMALL}
        node = await Node.start(world, parse_config(settings))
        dispatcher, cancelled = node.server.dispatcher, asyncio.Event()

        def cancel() -> None:
            for task in dispatcher.tasks:
                task.cancel()
            cancelled.set()

        def between(_api: Api, _handle: Any) -> Any:
            async def wait(*_: Any) -> None:
                asyncio.get_running_loop().call_soon(cancel)  # before the first step of the task
                await asyncio.Event().wait()

            return wait

        try:
            dispatcher.stand_between(between)
            _, writer = await asyncio.open_connection(*node.bootstrap.split(":"))
            writer.write(frames(1))
            await cancelled.wait()
            while dispatcher.tasks:
                await asyncio.sleep(0)
            writer.close()
        finally:
            dispatcher.stand_between(None)
            await node.stop()
            world.close()

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        asyncio.run(asyncio.wait_for(whole(), 60))
        gc.collect()
    assert [str(each.message) for each in shown if "never awaited" in str(each.message)] == []
