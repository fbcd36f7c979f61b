"""A follower whose log is longer than the leader's: what the leader answers, and how the follower truncates its log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kpybroker.errors import ErrorCode
from kpybroker.metadata.chronicle import CHRONICLE
from tests.replication.test_data_loss import fenced
from tests.replication.test_wrong_senders import fetched
from tests.replication.virtual import VirtualCluster, play


def test_a_longer_follower_learns_at_once_where_to_truncate() -> None:
    """Apache Kafka's follower logs a warning and asks for the log end, if it gets OFFSET_OUT_OF_RANGE instead."""

    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create((1, 2, 3))
        end = await cluster.put(b"x") + 1
        await cluster.until(lambda: cluster.replica(1).log.high_watermark == end, "it is committed")
        image = cluster.broker(1).metadata.image
        topic_id, epoch = image.topics["t"].id, image.brokers[2].epoch
        now = image.topics["t"].partitions[0].leader_epoch
        for offset, last_epoch, code, told_end in (
            (end, now, 0, -1),
            (end + 3, now, 0, end),
            (end + 3, -1, ErrorCode.OFFSET_OUT_OF_RANGE, -1),
            (-1, now, ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        ):
            request = fetched(topic_id, offset, 2, epoch, current_leader_epoch=now, last_fetched_epoch=last_epoch)
            told = await cluster.ask("Fetch", request, 1)
            (row,) = told.responses[0].partitions
            diverging = row.diverging_epoch
            assert (row.error_code, -1 if diverging is None else diverging.end_offset) == (code, told_end)
            assert diverging is None or told_end < 0 or diverging.epoch == now
        assert cluster.replica(1).log.high_watermark == end, "records that the leader does not have are not counted"

    play(scene)


def test_everything_else_is_served_between_two_truncations(caplog: pytest.LogCaptureFixture) -> None:
    """A truncation waits for the disk twice, and a leader may answer that hundreds of logs diverge."""
    caplog.set_level(logging.INFO, CHRONICLE)
    count = 20

    async def scene(cluster: VirtualCluster) -> None:
        await cluster.create(*[(1, 2)] * count, unclean_leader_election_enable="true")
        cluster.machines[2].kill()
        await fenced(cluster, 2)
        for index in range(count):
            await cluster.put(b"one has it", index=index)
        cluster.machines[1].kill()
        await cluster.start(2)
        for index in range(count):
            await cluster.put(b"the other went on", b"and on", index=index)
        turns = Turns()
        logging.getLogger(CHRONICLE).addHandler(turns)
        try:
            await cluster.start(1)
            await cluster.until(
                lambda: all(len(cluster.image(index=index).isr) == 2 for index in range(count)), "all are in sync"
            )
        finally:
            logging.getLogger(CHRONICLE).removeHandler(turns)
        assert len(turns.of_truncations) == count
        assert len(set(turns.of_truncations)) == count, "each is in a turn of the event loop of its own"

    play(scene, 6, voters=(4, 5, 6))


class Turns(logging.Handler):
    """The turns of the event loop in which logs are truncated. Only those after a truncation are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.of_truncations: list[int] = []
        self._turn = 0

    def emit(self, record: logging.LogRecord) -> None:
        if "is truncated" in record.msg:
            self.of_truncations.append(self._turn)
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._turn += 1
