"""Parses, processes and encodes long requests over several turns of the event loop, so that other requests do not wait.

A request of more than `parsing.ELEMENTS_AT_ONCE` elements is processed in its own task. Until it is parsed, it stays in
the receive buffer, which counts as used memory, and its connection waits. If the connection is lost, the task ends at
its next turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import cache
from typing import Any, cast, get_args, get_origin

from kpybroker.call import Reply, response_of
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.handlers import refused
from kpybroker.long_work import LongWork
from kpybroker.server.connections.receive_memory import SMALL_FRAME_BYTES
from kpybroker.wire.api import PRODUCE, Api
from kpybroker.wire.codec.codec import build_in_turns, parse_in_turns
from kpybroker.wire.encoded import Encoded
from kpybroker.wire.response_templates import Filled
from kpybroker.wire.rpc import fetch, share_fetch

Handle = Callable[[Any], Any]
"""Handles a request. Returns its response, a coroutine or a Reply. Raises KafkaError and Damage."""


class LongReply(Reply):
    """The reply to a long request. It is completed by a task, or by another reply that the task returns."""

    __slots__ = ("task", "waits_for")

    def __init__(self) -> None:
        super().__init__(holds_frame=True)
        self.task: asyncio.Task[Any] | None = None
        self.waits_for: Reply | None = None

    def cancel_if_abandoned(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task if the connection is closed."""
        self.task = task

    def give_way(self) -> None:
        if self.waits_for is not None:
            self.waits_for.give_way()

    def abandon(self) -> None:
        self.discard()
        if self.task is not None:
            self.task.cancel()


async def run_long(
    work: LongWork, api: Api, version: int, frame: memoryview, body_at: int, handle: Handle, reply: LongReply
) -> Any:
    """The response to a request of many elements. It is already encoded if encoding takes a long time. Raises
    MalformedFrame.

    The request occupies its place in `work` until its response is complete, or until it waits for a Reply.
    """
    small_bytes = (
        len(frame) if len(frame) <= SMALL_FRAME_BYTES else 0
    )  # larger frames count only towards the receive memory
    async with work.place(min(api.elements, len(frame)), small_bytes):
        request = await work.through(parse_in_turns(api.request, version, frame, body_at, api.elements))
        if not api.carries_bytes:
            reply.release_frame()
        try:
            result = handle(request)
            if isinstance(result, Coroutine):
                result = await result
        except KafkaError as refusal:
            result = refused(api, request, refusal)
        except Damage as damage:
            result = refused(api, request, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)))
        if not isinstance(result, Reply):
            return await encoded(work, version, result)
    del request
    if api is PRODUCE:
        reply.release_frame()  # the records have been written
    reply.waits_for = result
    return await encoded(work, version, await response_of(result))


ROWS_AT_ONCE = 500
"""A response with a longer list than this is encoded over several turns of the event loop."""


@cache
def _lists_of(kind: Hashable) -> tuple[str, ...]:
    """The names of the array fields of a message class."""
    return tuple(
        name
        for name, hint, _ in getattr(kind, "_declared", ())
        if any(get_origin(each) is list for each in (hint, *get_args(hint)))
    )


def has_many_rows(response: Any) -> bool:
    """Whether encoding a response at once would delay other requests."""
    return any(len(getattr(response, name) or ()) > ROWS_AT_ONCE for name in _lists_of(cast(Hashable, type(response))))


def _has_few_partitions(response: share_fetch.Response) -> bool:
    return sum(1 + len(topic.partitions) for topic in response.responses) <= ROWS_AT_ONCE


async def encoded(work: LongWork, version: int, response: Any) -> Any:
    """Encode a response over several turns. Encoded responses, templates, and records that can be sent without a copy
    are returned unchanged."""
    if response is None or isinstance(response, Encoded | Reply | fetch.Response | Filled):
        return response  # Fetch responses with many rows are templates, which are encoded over several turns
    if isinstance(response, share_fetch.Response) and _has_few_partitions(response):
        return response
    return Encoded(await work.through(build_in_turns(response, version)))
