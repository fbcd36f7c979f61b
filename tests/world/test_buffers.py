"""Tests of read buffers: a buffer has the requested size, no two users share a buffer, and the kept memory is
limited."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.world.buffers import KEPT_BUFFERS, KEPT_BYTES, ReadBuffer, ReadBuffers


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8 << 20)), max_size=80))
def test_no_two_users_share_memory(steps: list[tuple[bool, int]]) -> None:
    buffers = ReadBuffers()
    held: list[memoryview] = []
    for is_taken, size in steps:
        if is_taken or not held:
            view = buffers.take(size)
            assert len(view) == size
            assert all(view.obj is not other.obj for other in held)
            held.append(view)
        else:
            given_back = held.pop(size % len(held)).obj
            assert isinstance(given_back, ReadBuffer)
            buffers.give_back(given_back)


def test_kept_memory_has_a_limit() -> None:
    buffers = ReadBuffers()
    for size in (1 << 20, 100_000):
        views = [buffers.take(size) for _ in range(2 * KEPT_BUFFERS)]
        for view in views:
            assert isinstance(view.obj, ReadBuffer)
            buffers.give_back(view.obj)
    assert 0 < len(buffers.free_sizes) <= KEPT_BUFFERS
    assert sum(buffers.free_sizes) <= KEPT_BYTES


def test_a_buffer_that_is_returned_twice_is_a_bug() -> None:
    buffers = ReadBuffers()
    buffer = buffers.take(100_000).obj
    assert isinstance(buffer, ReadBuffer)
    buffers.give_back(buffer)
    with pytest.raises(AssertionError, match="returned twice"):
        buffers.give_back(buffer)
    assert buffers.take(100_000).obj is buffer
    buffers.give_back(buffer)
