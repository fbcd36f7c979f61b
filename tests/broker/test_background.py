"""A bug in a background task stops the node. Otherwise it would remain unnoticed, and logs would grow without limit."""

from __future__ import annotations

import asyncio

from kpybroker.broker.background import BackgroundTasks
from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from tests.conftest import WithBroker


async def broken() -> None:
    raise AssertionError("a bug")


def test_a_bug_in_background_work_is_the_reason_that_the_node_reports(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        node.broker.background.begin("the log cleaner", broken())
        assert await asyncio.wait_for(node.failed, 20) == "bug in the log cleaner: AssertionError('a bug')"

    with_broker(scenario)


def test_only_the_first_reason_is_kept_and_a_stop_is_not_a_failure() -> None:
    async def play() -> None:
        background = BackgroundTasks()
        background.begin("a task that is stopped", asyncio.Event().wait())  # type: ignore[arg-type]
        background.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not background.failed.done()
        background.fail("one")
        background.fail("two")
        assert background.failed.result() == "one"

    asyncio.run(play())
