"""The reply to a Fetch that has to wait for records or for a read from the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from kpybroker.call import Reply
from kpybroker.errors import Damage, KafkaError
from kpybroker.serving.fetch.view import Cold, View
from kpybroker.wire.rpc.fetch import Response

if TYPE_CHECKING:
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.replication.partition.sessions import Want


class FetchReply(Reply):
    """Waits for records, for `max_wait_ms` to pass, or for a read from the disk, and then reads its partitions
    again."""

    __slots__ = ("_again", "_task", "_timer", "view")

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view
        self._timer: asyncio.TimerHandle | None = None
        """The timer for `max_wait_ms`."""
        self._again: asyncio.TimerHandle | None = None
        """A timer for another read of the partitions before that, even without an append."""
        self._task: asyncio.Task[None] | None = None

    def park(self, found: Cold | None) -> None:
        """Wait for records, or for bytes that must be read from the disk (`found`)."""
        self._go_on(found)
        self._start_timer()
        self.view.watch(self)

    def _start_timer(self) -> None:
        wait_s = max(self.view.request.max_wait_ms, 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._time_out)

    def settle(self) -> None:
        """Read the partitions again after an append to one of them."""
        if not self.done and self._task is None:
            self._look(final=False)

    def give_way(self) -> None:
        if self._task is None:
            self._time_out()

    def _time_out(self) -> None:
        if not self.done and self._task is None:
            self._look(final=True)

    def _call_again(self, wait_s: float) -> None:
        self._again = asyncio.get_running_loop().call_later(wait_s, self._again_is_due)

    def _again_is_due(self) -> None:
        self._again = None
        self._look_again()

    def _look_again(self) -> None:
        self.settle()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)

    def _end_task(self) -> None:
        self._task = None

    def _look(self, *, final: bool) -> None:
        found = self.view.answer(final=final)
        if isinstance(found, Response):
            self._finish(found)
        else:
            self._go_on(found)

    def _go_on(self, found: Cold | None) -> None:
        if found is not None:
            self._start_task(self._bring(*found))
        elif self._again is None and self.view.again_s is not None:
            self._call_again(self.view.again_s)

    async def _bring(self, want: Want, partition: Partition) -> None:
        """Read bytes that are not in the page cache on another thread, and complete the reply, at least with this
        partition."""
        request = self.view.request
        size_bytes = min(want.max_bytes, request.max_bytes, self.view.broker.quotas.fetch_max_bytes)
        await self._read_cold(want, partition, max(size_bytes, 0))
        self._end_task()
        self._time_out()

    async def _read_cold(self, want: Want, partition: Partition, size_bytes: int) -> None:
        upper = self.view.upper(partition)
        try:
            records = await partition.log.read_cold(want.fetch_offset, size_bytes, upper=upper, min_one=True)
            self.view.cold[want] = records
        except (KafkaError, Damage):
            want.locate(None)  # the next read returns the error

    def _finish(self, response: Response) -> None:
        self._release()
        self.complete(response)

    def _release(self) -> None:
        for timer in (self._timer, self._again):
            if timer is not None:
                timer.cancel()
        self.view.unwatch(self)

    def abandon(self) -> None:
        self.discard()
        self._release()
        if self._task is not None:
            self._task.cancel()


def begin(view: View) -> Response | Reply:
    """Read the partitions once. Return the response, or a reply that waits for more records."""
    found = view.answer(final=view.request.max_wait_ms <= 0 or view.is_empty)
    if isinstance(found, Response):
        return found
    reply = FetchReply(view)
    reply.park(found)
    return reply
