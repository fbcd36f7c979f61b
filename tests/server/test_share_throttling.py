"""ShareFetch and the quota for consumers, on a whole node in virtual time: no record is acquired for a response that
is not sent."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from tests.handlers.sharing import ACCEPT, AT_ONCE, append, configure, described_offsets, fetch, joined, ranges, topic
from tests.server.test_throttling import SLACK_S, lasted, limit, next_answer_s
from tests.server.virtual import Dial, run_virtually

RATE = 1_000
SLOW = (("client-id", "slow"),)


async def filled(admin: Peer) -> bytes:
    """A topic with three batches of about 16 KB, and a group that begins at the first; returns the topic's id."""
    topic_id = await topic(admin, batches=0)
    for _ in range(3):
        await append(admin, "t", 1_500)
    await configure(admin, "g", auto_offset_reset="earliest")
    await joined(admin)
    await limit(admin, "consumer_byte_rate", RATE, SLOW)
    return topic_id


def test_what_is_acquired_is_sent_and_then_the_client_waits() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin, slow = await dial("admin"), await dial("slow")
        topic_id = await filled(admin)
        told, took_s = await lasted(fetch(slow, topic_id, 0, max_records=1))
        assert (ranges(told), took_s < SLACK_S) == ([(0, 1_499, 1)], True)
        wait_s = told.throttle_time_ms / 1000
        assert wait_s > 1
        assert wait_s - SLACK_S < await next_answer_s(slow) < wait_s + SLACK_S
        assert node.server.metrics.requests_throttled == 1

    run_virtually(scenario, AT_ONCE)


def test_a_client_above_its_quota_acquires_nothing_but_its_acknowledgements_are_done() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin, slow, other = await dial("admin"), await dial("slow"), await dial("slow")
        topic_id = await filled(admin)
        assert (await fetch(other, topic_id, 0, member_id="n", max_records=1)).throttle_time_ms > 0
        told, took_s = await lasted(fetch(slow, topic_id, 0, max_records=1))
        assert (ranges(told), took_s < SLACK_S, told.throttle_time_ms > 0) == ([], True, True)
        free = await dial("admin")
        assert ranges(await fetch(free, topic_id, 0, member_id="f")) == [(1_500, 2_999, 1)], "nobody holds them"
        told, waited_s = await lasted(fetch(other, topic_id, 1, (0, 1_499, ACCEPT), member_id="n", max_wait_ms=0))
        assert told.responses[0].partitions[0].acknowledge_error_code == 0
        assert waited_s > 1
        assert (await described_offsets(admin, "g"))["t", 0].lag == 3_000

    run_virtually(scenario, AT_ONCE)


def test_without_a_quota_for_the_client_nothing_waits() -> None:
    async def scenario(node: Node, dial: Dial) -> None:
        admin = await dial("admin")
        topic_id = await filled(admin)
        told = await fetch(admin, topic_id, 0)
        assert (ranges(told), told.throttle_time_ms) == ([(0, 1_499, 1)], 0)

    run_virtually(scenario, AT_ONCE)
