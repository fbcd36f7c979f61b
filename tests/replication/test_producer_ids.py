"""ProducerIds assigns no id twice, in any interleaving."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.node.producer_ids import ProducerIds


@dataclass(frozen=True)
class Block:
    """Consecutive ids from `first` on."""

    first: int
    count: int


class Allocator:
    """A controller that takes a few turns of the event loop for each block."""

    def __init__(self, sizes: list[int], turns: int) -> None:
        self.sizes = sizes
        self.turns = turns
        self.given = 0
        self.asked = 0

    async def allocate(self) -> Block:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        size = self.sizes[self.asked % len(self.sizes)]
        self.asked += 1
        first, self.given = self.given, self.given + size
        return Block(first, size)


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), turns=st.integers(0, 3), askers=st.integers(1, 12))
def test_all_ids_differ(sizes: list[int], turns: int, askers: int) -> None:
    async def whole() -> None:
        allocator = Allocator(sizes, turns)
        ids = ProducerIds(allocator.allocate)
        found = await asyncio.gather(*(ids.next() for _ in range(askers)))
        found += [await ids.next() for _ in range(3)]
        assert len(set(found)) == len(found)
        assert all(0 <= each < allocator.given for each in found)

    asyncio.run(whole())


def test_a_refusal_is_raised_and_the_next_call_asks_again() -> None:
    async def whole() -> None:
        refusals = [KafkaError(ErrorCode.NOT_CONTROLLER)]

        async def allocate() -> Block:
            if refusals:
                raise refusals.pop()
            return Block(40, 1)

        ids = ProducerIds(allocate)
        with pytest.raises(KafkaError) as refused:
            await ids.next()
        assert refused.value.code == ErrorCode.NOT_CONTROLLER
        assert await ids.next() == 40

    asyncio.run(whole())
