"""The Fetch of `__cluster_metadata` by replicas of the quorum (KIP-595).

A Fetch waits for records, or for a high watermark above the one in the request (KIP-1166).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kpybroker.call import Call, Reply
from kpybroker.raft.duties.fetch_rpcs import FetchRpcs
from kpybroker.raft.log.identity import METADATA_TOPIC_ID
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc.fetch import FetchableTopicResponse, PartitionData, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

WAIT_MAX_MS = 10_000


class MetadataFetchReply(Reply):
    """Waits for records or a new high watermark, for `max_wait_ms` to pass, or for a read from the disk."""

    __slots__ = ("_fetches", "_request", "_task", "_timer")

    def __init__(self, fetches: FetchRpcs, request: Request) -> None:
        super().__init__()
        self._fetches = fetches
        self._request = request
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def park(self, wait_ms: int) -> None:
        """Wait for records or a new high watermark, for at most this time."""
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._time_out)
        self._fetches.park(self.look_again)

    def look_again(self) -> None:
        """Check again, because there may be records or a new high watermark, or this node may no longer be the
        leader."""
        if self.done or self._task is not None:
            return
        row, has_records = self._fetches.row_for(self._request)
        if not has_records or self._fetches.has_news(self._request):
            self._answer(row, has_records)

    def give_way(self) -> None:
        """Complete the reply at once. Called only when the node stops, because replicas do not send a request behind a
        Fetch."""
        self._time_out()

    def _time_out(self) -> None:
        if not self.done and self._task is None:
            self._answer(*self._fetches.row_for(self._request))

    def _answer(self, row: PartitionData, has_records: bool) -> None:
        if has_records and not self._fetches.read(self._request, row):
            self._task = asyncio.get_running_loop().create_task(self._bring(row))
            return
        self._finish(row)

    async def _bring(self, row: PartitionData) -> None:
        """Read bytes that are not in the page cache on another thread, and complete the reply."""
        await self._fetches.read_cold(self._request, row)
        self._finish(row)

    def _finish(self, row: PartitionData) -> None:
        self._release()
        self.complete(respond(self._fetches, self._request, row))

    def _release(self) -> None:
        self._fetches.unpark(self.look_again)
        if self._timer is not None:
            self._timer.cancel()

    def abandon(self) -> None:
        self.discard()
        self._release()
        if self._task is not None:
            self._task.cancel()


def fetch_metadata(broker: Broker, call: Call, request: Request, replica_id: int) -> Response | Reply:
    """Return a response if there are records, a new high watermark or nothing to wait for, otherwise a reply that
    waits. Raises INCONSISTENT_CLUSTER_ID."""
    fetches = broker.quorum.fetches
    row, has_records = fetches.row_for(request)
    if has_records:
        fetches.count(request, replica_id)
        row, has_records = fetches.row_for(request)  # `count` may have raised the high watermark
    wait_ms = min(request.max_wait_ms, WAIT_MAX_MS)
    if not has_records or (fetches.has_news(request) and fetches.read(request, row)):
        return respond(fetches, request, row)
    reply = MetadataFetchReply(fetches, request)
    reply.park(wait_ms if wait_ms > 0 else 0)
    if fetches.has_news(request):
        reply.look_again()
    return reply


def respond(fetches: FetchRpcs, request: Request, row: PartitionData) -> Response:
    """The response with one row. It contains the leader's address if this node is not the leader."""
    topic = request.topics[0]
    told = FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[row])
    return Response(responses=[told], node_endpoints=fetches.node_endpoints())


def is_of_the_quorum(request: Request) -> bool:
    """Whether a Fetch reads only the metadata log. In v13 and later, it contains the topic's id instead of its name."""
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return False
    topic = request.topics[0]
    return bool(topic.topic_id == METADATA_TOPIC_ID or topic.topic == METADATA_TOPIC)
