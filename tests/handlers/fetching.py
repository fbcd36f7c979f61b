"""A consumer for tests that uses fetch sessions (KIP-227), and helpers for its requests."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.wire.records.batch import read_records, split
from kpybroker.wire.rpc import fetch

SESSION_LOST = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
PLENTY = 1 << 20


def want(index: int, offset: int, *, max_bytes: int = PLENTY, epoch: int = -1) -> fetch.FetchPartition:
    return fetch.FetchPartition(
        partition=index, fetch_offset=offset, partition_max_bytes=max_bytes, current_leader_epoch=epoch
    )


def asking(topic: str, topic_id: bytes, *wants: fetch.FetchPartition, **facts: Any) -> fetch.Request:
    """A Fetch request at any version. Without `session_epoch`, it has no session."""
    topics = [fetch.FetchTopic(topic=topic, topic_id=topic_id, partitions=list(wants))] if wants else []
    return fetch.Request(**{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": PLENTY, "topics": topics, **facts})


def rows(response: Any) -> dict[int, Any]:
    """The rows of a response about one topic, by partition, in the order of the response."""
    return {row.partition_index: row for topic in response.responses for row in topic.partitions}


def values(row: Any, since: int = 0) -> list[tuple[int, bytes]]:
    """The offset and the value of each record in a row, from offset `since` onwards."""
    batches = split(bytearray(row.records)) if row.records else []
    return [
        (record.offset, record.value or b"")
        for batch in batches
        for record in read_records(batch)
        if record.offset >= since
    ]


class Consumer:
    """Positions in the partitions of one topic, a fetch session, and the records received."""

    def __init__(self, peer: Peer, topic: str, topic_id: bytes, version: int) -> None:
        self.peer, self.topic, self.topic_id, self.version = peer, topic, topic_id, version
        self.position: dict[int, int] = {}
        self.delivered: dict[int, list[bytes]] = {}
        self.session_id = 0
        self.epoch = 0
        self._told: dict[int, int] = {}
        """The positions that this consumer last sent to the broker."""
        self.lost = 0

    def subscribe(self, index: int) -> None:
        self.position.setdefault(index, len(self.delivered.setdefault(index, [])))

    def unsubscribe(self, index: int) -> None:
        self.position.pop(index, None)

    async def fetch(self, max_bytes: int) -> int:
        """Fetch once. Returns the number of new records."""
        changed = {i: at for i, at in self.position.items() if self.epoch == 0 or self._told.get(i) != at}
        gone = [i for i in self._told if i not in self.position] if self.epoch else []
        request = asking(
            self.topic,
            self.topic_id,
            *(want(index, at) for index, at in changed.items()),
            max_bytes=max_bytes,
            session_id=self.session_id,
            session_epoch=self.epoch,
        )
        if gone:
            request.forgotten_topics_data = [
                fetch.ForgottenTopic(topic=self.topic, topic_id=self.topic_id, partitions=gone)
            ]
        response = await self.peer.ask("Fetch", request, version=self.version)
        if response.error_code in SESSION_LOST:
            self.session_id = self.epoch = 0
            self.lost += 1
            return 0
        assert response.error_code == 0
        self._told = dict(self.position)
        self.session_id = response.session_id
        self.epoch = self.epoch + 1 if self.session_id else 0
        return sum(self._take(index, row) for index, row in rows(response).items())

    def _take(self, index: int, row: Any) -> int:
        assert row.error_code == 0
        assert index in self.position, "a forgotten partition is not in the response"
        found = values(row, self.position[index])
        assert [offset for offset, _ in found] == list(range(self.position[index], self.position[index] + len(found)))
        self.delivered[index] += [value for _, value in found]
        self.position[index] += len(found)
        return len(found)
