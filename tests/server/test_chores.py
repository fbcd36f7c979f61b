"""A chore that ends by a bug ends the node: else nobody would notice that logs grow from then on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kpybroker.storage.dirs.cleaner import Cleaner
from tests.serving import serving


def test_a_bug_in_a_chore_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: Cleaner) -> bool:
        raise AssertionError("a bug")

    monkeypatch.setattr(Cleaner, "clean_dirtiest", broken)

    async def play() -> None:
        async with serving(tmp_path / "data") as node:
            assert await asyncio.wait_for(node.failed, 20) == "bug in the log cleaner: AssertionError('a bug')"

    asyncio.run(play())
