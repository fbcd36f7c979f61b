"""Renamed files are unlinked when they are due, and files that cannot be unlinked do not delay others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from kpybroker.storage.dirs.garbage import Garbage, unlink
from kpybroker.wire.rpc import delete_topics
from kpybroker.world.real import RealWorld
from tests.asking import make, put
from tests.conftest import WithBroker
from tests.storage.workshop import WORLD

HOUR_MS = 3_600_000


class SetClock(RealWorld):
    """A World whose steady clock does not advance until it is set."""

    now_ms = 1000

    def steady_ms(self) -> int:
        return self.now_ms


@given(st.lists(st.integers(0, 50)), st.integers(0, 50))
def test_due_files_are_unlinked_earliest_first(times: list[int], now_ms: int) -> None:
    garbage = Garbage(WORLD)
    for number, due_ms in enumerate(times):
        garbage.add(due_ms, f"{due_ms} {number}")
    taken = garbage.take(now_ms)
    assert [int(path.split()[0]) for path in taken] == sorted(due_ms for due_ms in times if due_ms <= now_ms)
    assert len(garbage) == len(times) - len(taken)
    assert len(garbage.take()) == len(times) - len(taken)
    assert len(garbage) == 0


def test_a_later_file_that_is_due_sooner_does_not_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = SetClock(1)
        garbage = Garbage(world)
        for name in ("late.deleted", "soon.deleted"):
            (tmp_path / name).touch()
        garbage.add(world.now_ms + HOUR_MS, str(tmp_path / "late.deleted"))
        running = asyncio.create_task(garbage.unlink_when_due())
        await asyncio.sleep(0)
        garbage.add(world.now_ms, str(tmp_path / "soon.deleted"))
        while (tmp_path / "soon.deleted").exists():
            await asyncio.sleep(0)
        assert (tmp_path / "late.deleted").exists()
        assert len(garbage) == 1
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        world.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_file_that_cannot_be_unlinked_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = tmp_path / f"a-0.{'0' * 32}-delete"
    (full / "a directory").mkdir(parents=True)
    (tmp_path / "b.deleted").touch()
    with caplog.at_level(logging.ERROR):
        unlink(WORLD.disk, [str(full), str(tmp_path / "gone.deleted"), str(tmp_path / "b.deleted")])
    assert [path.name for path in tmp_path.iterdir()] == [full.name]
    (said,) = caplog.messages
    assert str(full) in said


def test_a_broker_unlinks_files_when_they_are_due_and_not_at_checkpoints(
    with_broker: WithBroker, tmp_path: Path
) -> None:
    """The next checkpoint is an hour later, after the end of the test."""

    def left(pattern: str) -> list[Path]:
        return list((tmp_path / "data").glob(pattern))

    async def until_gone(pattern: str) -> None:
        while left(pattern):
            await asyncio.sleep(0)

    async def scenario(peer: Peer, node: Node) -> None:
        soon = {"file.delete.delay.ms": "1"}
        await make(peer, "deleted", configs=soon)
        await make(peer, "retained", configs=soon | {"retention.ms": "1"})
        await make(peer, "kept", configs={"retention.ms": "1"})
        for topic in ("deleted", "retained", "kept"):
            assert (await put(peer, topic, b"old")).error_code == 0
        await peer.ask("DeleteTopics", delete_topics.Request(topics=[delete_topics.DeleteTopicState(name="deleted")]))
        await until_gone("*-delete")
        log = node.broker.replication.hosting.leads("retained", 0).log
        while log.start == 0:
            await asyncio.sleep(0)
        await until_gone("retained-0/*.deleted")
        kept = node.broker.replication.hosting.leads("kept", 0).log
        while kept.start == 0:
            await asyncio.sleep(0)
        assert [path.name for path in left("kept-0/*.log.deleted")] == [f"{0:020d}.log.deleted"]

    often = {"log.retention.check.interval.ms": "5", "log.flush.offset.checkpoint.interval.ms": str(HOUR_MS)}
    with_broker(scenario, often)
