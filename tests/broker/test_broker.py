"""A bug in a periodic task stops the node. Otherwise it would remain unnoticed, and logs would grow without limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kpybroker.server.node import Node
from kpybroker.wire.records.batch import encode_batch
from tests.asking import NOW_MS, make, put
from tests.server.virtual import Dial, run_virtually


@pytest.mark.parametrize(
    ("chore", "wrong"),
    [
        ("the log cleaner", {"min_cleanable_dirty_ratio": "half"}),
        ("retention and checkpoints", {"retention_ms": "day"}),
    ],
)
def test_a_bug_in_a_periodic_task_stops_the_node(chore: str, wrong: dict[str, Any]) -> None:
    """The bug is caused by a setting of one log that has the wrong type, so that only this task fails."""

    async def scenario(node: Node, dial: Dial) -> None:
        peer = await dial("client")
        await make(peer, "t", configs={"cleanup.policy": "compact,delete", "internal.segment.bytes": "100"})
        keyed = bytes(encode_batch([(b"k", b"v")], timestamp_ms=NOW_MS))
        for _ in range(3):
            assert (await put(peer, "t", records=keyed)).error_code == 0
        log = node.broker.replication.hosting.leads("t", 0).log
        log.configure(replace(log.settings, **wrong))
        why = await node.failed
        assert why.startswith(f"bug in {chore}: TypeError(")

    run_virtually(scenario)
