"""A message that is built over several turns has the same bytes as one that is built at once, regardless of where the
turns end."""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import Any

import pytest

from kpybroker.wire.codec import building
from kpybroker.wire.codec.building import ELEMENTS_A_TURN
from kpybroker.wire.codec.codec import build, build_chunks_in_turns
from kpybroker.wire.codec.layout import layout
from kpybroker.wire.rpc import fetch, produce
from tests.wire.messages import MESSAGES, VERSIONS
from tests.wire.values import arbitrary


def finished(work: Generator[None, None, list[Any]]) -> tuple[bytes, int]:
    """The built bytes, and the number of turns in which other work could run."""
    turns = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return b"".join(end.value), turns
        turns += 1


@pytest.mark.parametrize(("name", "version"), VERSIONS, ids=str)
def test_a_turn_after_each_element_changes_no_message(name: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cls: Any = MESSAGES[name]
    monkeypatch.setattr(building, "ELEMENTS_A_TURN", 1)
    monkeypatch.setattr(cls, "lowered_others", {})
    random = Random(f"{name} {version}")
    for _ in range(3):
        message = arbitrary(layout(cls, version), random)
        assert finished(build_chunks_in_turns(message, version))[0] == build(message, version)


@pytest.mark.parametrize("nodes", [1, 2, 3, ELEMENTS_A_TURN, 2 * ELEMENTS_A_TURN + 1])
@pytest.mark.parametrize("rows", range(ELEMENTS_A_TURN - 5, ELEMENTS_A_TURN + 2))
def test_a_turn_may_end_inside_a_tagged_array(rows: int, nodes: int) -> None:
    fetched = fetch.Response(
        responses=[
            fetch.FetchableTopicResponse(partitions=[fetch.PartitionData(partition_index=n)]) for n in range(rows)
        ],
        node_endpoints=[fetch.NodeEndpoint(node_id=n, host=f"host-{n}", port=9092) for n in range(nodes)],
    )
    produced = produce.Response(
        responses=[
            produce.TopicProduceResponse(
                partition_responses=[produce.PartitionProduceResponse(index=n) for n in range(rows)]
            )
        ],
        node_endpoints=[produce.NodeEndpoint(node_id=n, host=f"host-{n}", port=9092) for n in range(nodes)],
    )
    for message, version in ((fetched, 16), (fetched, 17), (produced, 10), (produced, 13)):
        assert finished(build_chunks_in_turns(message, version))[0] == build(message, version)
    assert finished(build_chunks_in_turns(fetched, 16))[1] == 2 * rows // ELEMENTS_A_TURN
