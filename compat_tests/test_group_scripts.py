"""Tests that a broker sends exactly the responses in scripts of tests/groups/scripts. `--target kafka` checks the
scripts themselves against Apache Kafka."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from compat_tests.conftest import MakeTopic, Running
from compat_tests.group_exchange import Exchange
from kpybroker.world.real import RealWorld

SCRIPTS = Path(__file__).resolve().parent.parent / "tests" / "groups" / "scripts"
PLAYED = ("dynamic_members", "static_members", "old_clients", "offsets")


@pytest.mark.parametrize("script", PLAYED)
def test_script(broker: Running, make_topic: MakeTopic, unique: Callable[[], str], script: str) -> None:
    suffix = "-" + unique()
    topics = {"t": make_topic(), "u": make_topic()}

    async def play() -> list[tuple[str, list[str], list[str]]]:
        world = RealWorld(seed=1)
        host, _, port = broker.bootstrap.rpartition(":")
        exchange = Exchange(world.network, host, int(port), suffix, topics)
        return await exchange.play((SCRIPTS / f"{script}.txt").read_text())

    for line, due, heard in asyncio.run(asyncio.wait_for(play(), 120)):
        assert heard == due, line
