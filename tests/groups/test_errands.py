"""Tests that a group coordinator that resigns stops its requests to share coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kpybroker.groups.coordinator import GroupCoordinator
from kpybroker.groups.ground.settings import GroupSettings
from tests.groups.sharing import beat
from tests.groups.test_coordinator import GROUP_OF, PARTITIONS, TIMEOUT_MS, Clock, MemoryLog
from tests.shares.stage import TOPICS, image_of


class SilentKeeper:
    """Share coordinators that never respond."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.given_up = asyncio.Event()

    async def initialize(
        self, group_id: str, topic_id: bytes, state_epoch: int, starts: Sequence[tuple[int, int]]
    ) -> None:
        await self._wait()

    async def delete(self, group_id: str, topic_id: bytes, partitions: Sequence[int]) -> None:
        await self._wait()

    async def _wait(self) -> None:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up.set()


def test_a_coordinator_that_resigns_tries_its_errands_no_more() -> None:
    """A later retry could reset the offsets of records that members have consumed since."""

    async def play() -> None:
        keeper, image = SilentKeeper(), image_of(TOPICS)
        groups = GroupCoordinator(Clock(), GroupSettings(), lambda: PARTITIONS, lambda: image, lambda: keeper)
        groups.become_leader(0, MemoryLog(), 1)
        await groups.loaded()
        await groups.runner(GROUP_OF[0]).ask(beat("member", 0, "t1", group=GROUP_OF[0]), TIMEOUT_MS)
        await keeper.asked.wait()
        assert not keeper.given_up.is_set()
        groups.resign(0)
        await keeper.given_up.wait()
        groups.close()

    asyncio.run(asyncio.wait_for(play(), 10))
