"""Requests to share coordinators on other brokers: each has the rows of several share partitions, as in Kafka.

For each broker, API and group there is one request at a time. Rows that are added in the meantime are sent in the next
request.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from kpybroker.client.broker_connections import LOST, BrokerConnections
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.shares.keys import ShareKey
from kpybroker.wire.rpc import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)

ROWS_MAX = 500
"""The maximum number of share partitions in one request."""
BATCHES_MAX = 50_000
"""The maximum number of batches of delivery states in a request with several share partitions: the Api table limits the
elements of a request."""


class StateApi(NamedTuple):
    """An API of share coordinators: its name, and the classes of its request, and of a topic in the request."""

    name: str
    request: Any
    topic: Any


DELETE = StateApi("DeleteShareGroupState", delete_share_group_state.Request, delete_share_group_state.DeleteStateData)
INITIALIZE = StateApi(
    "InitializeShareGroupState",
    initialize_share_group_state.Request,
    initialize_share_group_state.InitializeStateData,
)
READ = StateApi("ReadShareGroupState", read_share_group_state.Request, read_share_group_state.ReadStateData)
READ_SUMMARY = StateApi(
    "ReadShareGroupStateSummary",
    read_share_group_state_summary.Request,
    read_share_group_state_summary.ReadStateSummaryData,
)
WRITE = StateApi("WriteShareGroupState", write_share_group_state.Request, write_share_group_state.WriteStateData)


class _Line(NamedTuple):
    """The broker, the API and the group of a request. Entries that agree in all three are sent in the same request."""

    node_id: int
    api: StateApi
    group_id: str


class _Asked(NamedTuple):
    key: ShareKey
    row: Any
    answer: asyncio.Future[Any]


class StateRequests:
    """Sends rows of requests, and returns the rows of the responses."""

    def __init__(self, connections: BrokerConnections) -> None:
        self._connections = connections
        self._waiting: dict[_Line, list[_Asked]] = {}
        self._sending: dict[_Line, asyncio.Task[None]] = {}

    async def ask(self, node_id: int, api: StateApi, key: ShareKey, row: Any, timeout_ms: int) -> Any:
        """The row of the response for a share partition. row: its row of the request. Raises KafkaError:
        NETWORK_EXCEPTION if the broker does not respond."""
        line = _Line(node_id, api, key.group_id)
        loop = asyncio.get_running_loop()
        asked = _Asked(key, row, loop.create_future())
        self._waiting.setdefault(line, []).append(asked)
        if line not in self._sending:
            self._sending[line] = loop.create_task(self._send_on(line, timeout_ms))
        return await asked.answer

    async def _send_on(self, line: _Line, timeout_ms: int) -> None:
        """Send requests until no row is left. The first request is sent at the end of this turn of the event loop."""
        try:
            while some := self._next(line):
                await self._send(line, some, timeout_ms)
        finally:
            del self._sending[line]

    def _next(self, line: _Line) -> dict[ShareKey, _Asked]:
        """Remove and return the rows of the next request. It contains each share partition at most once."""
        some: dict[ShareKey, _Asked] = {}
        rest = []
        left = BATCHES_MAX
        for asked in self._waiting.pop(line, ()):
            batches = len(getattr(asked.row, "state_batches", ()))
            if some and (asked.key in some or len(some) == ROWS_MAX or batches > left):
                rest.append(asked)
            else:
                some[asked.key] = asked
                left -= batches
        if rest:
            self._waiting[line] = rest
        return some

    async def _send(self, line: _Line, some: dict[ShareKey, _Asked], timeout_ms: int) -> None:
        rows: dict[bytes, list[Any]] = {}
        for key, asked in some.items():
            rows.setdefault(key.topic_id, []).append(asked.row)
        topics = [line.api.topic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in rows.items()]
        request = line.api.request(group_id=line.group_id, topics=topics)
        try:
            told = await self._connections.ask(line.node_id, line.api.name, request, timeout_ms)
        except LOST as lost:
            refusal = KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {line.node_id} did not respond: {lost}")
            for asked in some.values():
                _settle(asked, refusal)
            return
        for topic in told.results:
            for row in topic.partitions:
                answered = some.pop(ShareKey(line.group_id, bytes(topic.topic_id), row.partition), None)
                if answered is not None:
                    _settle(
                        answered, KafkaError(ErrorCode(row.error_code), row.error_message) if row.error_code else row
                    )
        for asked in some.values():
            _settle(
                asked,
                KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    f"broker {line.node_id} did not include the share partition in its response",
                ),
            )

    def close(self) -> None:
        """Cancel all requests, because the broker is stopping. Their callers receive no response."""
        for task in self._sending.values():
            task.cancel()
        for waiting in self._waiting.values():
            for asked in waiting:
                asked.answer.cancel()
        self._waiting.clear()


def _settle(asked: _Asked, answer: Any) -> None:
    if asked.answer.done():
        return
    if isinstance(answer, KafkaError):
        asked.answer.set_exception(answer)
    else:
        asked.answer.set_result(answer)
