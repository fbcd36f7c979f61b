"""Assigns producer ids from blocks that the controller allocates (KIP-730)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol


class IdBlock(Protocol):
    """Consecutive ids that the controller allocated to this broker only."""

    @property
    def first(self) -> int: ...

    @property
    def count(self) -> int: ...


class ProducerIds:
    """Assigns ids. `allocate` requests a block from the controller, and is called when the current block is used up."""

    def __init__(self, allocate: Callable[[], Awaitable[IdBlock]]) -> None:
        self._allocate = allocate
        self._next = 0
        self._end = 0

    async def next(self) -> int:
        """Return an id that no producer in the cluster has had. Raises the controller's KafkaError."""
        while self._next >= self._end:
            block = await self._allocate()
            if self._next >= self._end:
                self._next, self._end = block.first, block.first + block.count
        self._next += 1
        return self._next - 1
