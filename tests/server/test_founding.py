"""A node that has lost its directory must not form a second cluster if its former cluster still exists."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from kpybroker.errors import ConfigError
from tests.server.clustering import PATIENCE_S
from tests.server.voting import Quorum, run_quorum


async def lost_founder(quorum: Quorum) -> None:
    """Form a cluster of three voters, in which the first voter, which formed the cluster, has lost its directory."""
    await quorum.of_three()
    await quorum.voting(1, 2, 3)
    await quorum.stop(1)
    shutil.rmtree(quorum.root / "1")


def test_no_second_cluster_is_formed_beside_the_first(tmp_path: Path) -> None:
    async def play(quorum: Quorum) -> None:
        await lost_founder(quorum)
        await quorum.leader()
        cluster_id = re.escape(quorum.nodes[2].broker.storage.cluster_id)
        told = rf"belongs to a cluster already \(epoch \d+.*controllers=none and kpybroker.cluster.id={cluster_id},"
        with pytest.raises(ConfigError, match=told):
            await quorum.start(1)
        assert not list(quorum.root.glob("1/*")), "nothing was formatted"
        quorum.own[1] = {"kpybroker.initial.controllers": "none"}
        await quorum.start(1)
        former = quorum.nodes[2].broker.quorum.voters.get(1)
        assert former is not None
        assert (await quorum.remove(1, former.directory_id)).error_code == 0
        await quorum.until_caught_up(1)
        assert (await quorum.add(1)).error_code == 0
        await quorum.voting(1, 2, 3)

    run_quorum(tmp_path, play)


def test_a_second_cluster_stops_when_the_first_is_back(tmp_path: Path) -> None:
    """No other controller responded when it was formed. Later, the old voters send requests with the old directory id,
    so that the node checks again whether they belong to another cluster."""

    async def play(quorum: Quorum) -> None:
        await lost_founder(quorum)
        for node_id in (2, 3):
            await quorum.stop(node_id)
        await quorum.start(1)
        mistaken = quorum.nodes[1]
        assert mistaken.broker.quorum.voters.ids == (1,)
        await quorum.start(2, 3)
        why = await asyncio.wait_for(mistaken.failed, PATIENCE_S)
        assert "in another cluster with the same id" in why
        assert "initial.controllers=none" in why

    run_quorum(tmp_path, play)
