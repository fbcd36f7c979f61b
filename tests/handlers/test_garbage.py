"""Requests leave no reference cycles. A full collection is rare, so cycles that survive a young one take memory for
half an hour."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from kpybroker.call import Reply, TaskReply
from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import consumer_group_describe
from tests.conftest import WithBroker
from tests.handlers.sharing import ACCEPT, AT_ONCE, append, fetch, ranges, started, topic

REPEATS = 40


@contextmanager
def no_cycles() -> Iterator[None]:
    """Less than one unreachable object for each repetition."""
    gc.collect()
    gc.disable()
    try:
        yield
        assert gc.collect() < REPEATS
    finally:
        gc.enable()


def test_a_reply_that_follows_another_leaves_no_cycle() -> None:
    with no_cycles():
        for number in range(2 * REPEATS):
            reply, other = TaskReply(), Reply()
            reply.on_ready(reply.give_way)
            reply.follow(other)
            if number % 2:
                other.complete(None)
            else:
                reply.abandon()
                other.discard()


def test_fetches_of_share_groups_leave_no_cycles(with_broker: WithBroker) -> None:
    """Those that find records at once, and those that wait."""

    async def scenario(peer: Peer, _: Node) -> None:
        topic_id = await started(peer)
        epoch = last = 0
        for repeats in (2, REPEATS):
            with no_cycles():
                for _ in range(repeats):
                    told = await fetch(peer, topic_id, epoch, max_wait_ms=1)
                    for _, last, _ in ranges(told):
                        acked = await fetch(peer, topic_id, epoch + 1, (last - 9, last, ACCEPT), max_wait_ms=1)
                        assert not acked.error_code
                    epoch += 1 + bool(ranges(told))
                    await append(peer, "t", 10)

    with_broker(scenario, AT_ONCE)


def test_refusals_of_a_coordinator_leave_no_cycles(with_broker: WithBroker) -> None:
    async def refused(peer: Peer) -> int:
        request = consumer_group_describe.Request(group_ids=["g"])
        [group] = (await peer.ask("ConsumerGroupDescribe", request)).groups
        return int(group.error_code)

    async def scenario(peer: Peer, _: Node) -> None:
        await topic(peer)  # with the topic of the group coordinator
        while await refused(peer) != ErrorCode.GROUP_ID_NOT_FOUND:
            await asyncio.sleep(0)
        with no_cycles():
            for _ in range(REPEATS):
                assert await refused(peer) == ErrorCode.GROUP_ID_NOT_FOUND

    with_broker(scenario)
