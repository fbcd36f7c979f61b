"""If the log grows while a read waits for the disk, the read returns the requested records, and the next read continues
after them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kpybroker.wire.records.batch import split
from kpybroker.world.real import RealWorld
from tests.storage.workshop import History


class SlowDisk:
    """A slow disk. `meanwhile` is called during some of its reads."""

    def __init__(self, disk: Any, chance: Random) -> None:
        self._disk = disk
        self._chance = chance
        self.meanwhile: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    async def cold_read(self, handle: int, size: int, offset: int) -> bytes:
        if self._chance.random() < 0.5:
            self.meanwhile()
        found: bytes = await self._disk.cold_read(handle, size, offset)
        if self._chance.random() < 0.5:
            self.meanwhile()
        return found


@pytest.mark.parametrize("seed", range(60))
def test_a_log_may_grow_while_it_is_read(tmp_path: Path, seed: int) -> None:
    world, chance = RealWorld(seed=0), Random(seed)
    disk = SlowDisk(world.disk, chance)
    world.disk = disk  # type: ignore[assignment]
    history = History.of(tmp_path, seed, world=world)
    log, random = history.log, history.random

    def grow() -> None:
        for _ in range(random.randrange(4)):
            history.append()
        history.flush()

    for _ in range(10):
        grow()
    disk.meanwhile = grow
    for _ in range(30):
        log.files.reader.forget()
        offset = random.randint(log.start, log.end - 1)
        upper = random.choice((log.written_end, random.randint(offset, log.written_end)))
        max_bytes = random.choice((1, 400, 3000, 100_000))
        expected = history.expected_read(offset, max_bytes, upper)
        brought = bytes(asyncio.run(log.read_cold(offset, max_bytes, upper=upper, min_one=True)))
        found = split(brought) if brought else []
        assert [bytes(batch.view) for batch in found] == [bytes(batch.view) for batch in expected[: len(found)]]
        assert bool(found) == bool(expected)
        if found and found[-1].next_offset < log.written_end:
            rest = log.read(found[-1].next_offset, 1, upper=log.written_end, min_one=True)
            assert rest is not None
            assert split(bytes(rest))[0].base_offset == found[-1].next_offset
