"""The memory for clients that do not read their replies is limited, and so is the time that each of them stays open."""

from __future__ import annotations

import asyncio
from struct import pack

import pytest

from kpybroker.server.connections import unsent_replies
from kpybroker.server.connections.unsent_replies import LIMIT_BYTES, SMALL_FETCH_BYTES, TIGHT_BYTES, UnsentReplies
from kpybroker.server.node import Node
from tests.asking import fetched, make, put
from tests.server.line import Line, line
from tests.server.virtual import Dial, run_virtually

REPLY_BYTES = 1_000_000
IDLE_S = 60


class Sender:
    """A simulated connection with fixed values, which stores whether it was closed."""

    def __init__(self, size_bytes: int, stuck_since: float = 0.0) -> None:
        self.unsent_bytes = size_bytes
        self.stuck_since = stuck_since
        self.dropped: str | None = None

    def drop(self, why: str) -> None:
        self.dropped = why


def unsent_at(now: float) -> tuple[UnsentReplies, list[int | None]]:
    """An UnsentReplies object, and the list of limits that it sets for Fetches."""
    told: list[int | None] = []
    return UnsentReplies(lambda: now, told.append), told


def test_at_the_limit_no_connection_is_closed_and_one_byte_more_closes_the_largest_stuck_one() -> None:
    unsent, _ = unsent_at(10.0)
    part = LIMIT_BYTES // 8
    going = Sender(5 * part, stuck_since=9.5)
    stuck = [Sender(part), Sender(part - 1), Sender(part + 1)]
    for each in (going, *stuck):
        unsent.hold(each)
    assert unsent.total_bytes == LIMIT_BYTES
    assert not any(each.dropped for each in (going, *stuck))
    more = Sender(1, stuck_since=10.0)
    unsent.hold(more)
    assert [each.dropped is not None for each in (going, *stuck, more)] == [False, False, False, True, False]
    assert unsent.total_bytes == LIMIT_BYTES - part


def test_if_none_is_stuck_the_largest_is_closed() -> None:
    unsent, _ = unsent_at(10.0)
    senders = [Sender(size, stuck_since=9.9) for size in (LIMIT_BYTES // 2, LIMIT_BYTES // 4, LIMIT_BYTES // 4 + 1)]
    for each in senders:
        unsent.hold(each)
    assert [each.dropped is not None for each in senders] == [True, False, False]


def test_bytes_sent_in_the_meantime_are_not_counted() -> None:
    unsent, _ = unsent_at(10.0)
    first, second = Sender(LIMIT_BYTES), Sender(LIMIT_BYTES)
    unsent.hold(first)
    first.unsent_bytes = 0
    unsent.hold(second)
    assert (first.dropped, second.dropped) == (None, None)
    unsent.release(second)
    unsent.release(first)
    assert unsent.total_bytes == 0


def test_near_the_limit_fetches_return_less_and_then_the_usual_size_again() -> None:
    unsent, told = unsent_at(10.0)
    half, more = Sender(TIGHT_BYTES), Sender(1)
    unsent.hold(half)
    assert told == []
    unsent.hold(more)
    assert told == [SMALL_FETCH_BYTES]
    unsent.release(more)
    assert told == [SMALL_FETCH_BYTES, None]


async def silent(node: Node, count: int) -> list[Line]:
    """Connections that send a Fetch with a large response and do not read it."""
    lines = [await line(node) for _ in range(count)]
    for each in lines:
        each.pause()
        each.ask("Fetch", fetched("t", 0), 12)
    return lines


def test_a_client_that_does_not_read_is_closed_after_its_idle_time_even_if_it_sends() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin = await dial("admin")
        await make(admin, "t")
        await put(admin, "t", bytes(REPLY_BYTES))
        (one,) = await silent(node, 1)
        await asyncio.sleep(0.1)
        accepted = node.server.connections()[-1]
        for _ in range(IDLE_S - 5):
            one.send(pack(">ihhih", 10, 18, 0, 1, -1))
            await asyncio.sleep(1)
        assert node.server.unsent.total_bytes > REPLY_BYTES / 2
        assert accepted in node.server.connections()
        await asyncio.sleep(10)
        assert node.server.unsent.total_bytes == 0
        assert accepted not in node.server.connections()
        assert node.server.metrics.connections_dropped == 1

    run_virtually(scenario, {"connections.max.idle.ms": str(IDLE_S * 1000)})


def test_a_closing_connection_with_unread_replies_does_not_stay_open() -> None:
    """After an invalid frame, earlier replies are sent before the connection is closed, but only if the client
    reads."""

    async def scenario(node: Node, dial: Dial) -> None:
        admin = await dial("admin")
        await make(admin, "t")
        await put(admin, "t", bytes(REPLY_BYTES))
        (one,) = await silent(node, 1)
        await asyncio.sleep(1)
        accepted = node.server.connections()[-1]
        accepted.close()
        await asyncio.sleep(IDLE_S - 5)
        assert accepted in node.server.connections()
        await asyncio.sleep(10)
        assert accepted not in node.server.connections()
        assert not one.received

    run_virtually(scenario, {"connections.max.idle.ms": str(IDLE_S * 1000)})


def test_a_client_that_reads_slowly_is_served_while_others_do_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent_replies, "LIMIT_BYTES", 10 * REPLY_BYTES)
    monkeypatch.setattr(unsent_replies, "TIGHT_BYTES", 5 * REPLY_BYTES)
    monkeypatch.setattr(unsent_replies, "SMALL_FETCH_BYTES", 100_000)

    async def scenario(node: Node, dial: Dial) -> None:
        admin = await dial("admin")
        await make(admin, "t")
        for _ in range(3):
            await put(admin, "t", bytes(REPLY_BYTES))
        (slow,) = await silent(node, 1)
        most = 0
        for _ in range(40):
            others = await silent(node, 5)
            slow.resume()
            await asyncio.sleep(0.01)
            slow.pause()
            most = max(most, node.server.unsent.total_bytes)
            await asyncio.sleep(0.5)
            del others
        assert 5 * REPLY_BYTES < most <= 11 * REPLY_BYTES
        slow.resume()
        await asyncio.sleep(1)
        assert not slow.is_closed
        assert len(slow.received) > REPLY_BYTES
        assert node.server.metrics.connections_dropped > 100

    run_virtually(scenario)
