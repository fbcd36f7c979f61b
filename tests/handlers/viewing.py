"""Helpers that create views, and read topics and views as a consumer does."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.config.view_keys import VIEW_OF, VIEW_WHERE
from kpybroker.wire.records.batch import Record, read_records, split
from kpybroker.wire.rpc import create_topics, produce
from tests.asking import make
from tests.handlers.fetching import PLENTY, asking, want

READ_COMMITTED = 1


async def make_view(peer: Peer, name: str, where: str, of: str = "t") -> bytes:
    """Create a view. Returns its topic id."""
    return await make(peer, name, -1, {VIEW_OF: of, VIEW_WHERE: where}, replicas=-1)


async def created(peer: Peer, name: str, configs: dict[str, str], **facts: Any) -> Any:
    """The response row of a CreateTopics for one topic, which may be refused."""
    given = [create_topics.CreatableTopicConfig(name=name, value=value) for name, value in configs.items()]
    topic = create_topics.CreatableTopic(**{"num_partitions": -1, "replication_factor": -1, **facts}, name=name)
    topic.configs = given
    return (await peer.ask("CreateTopics", create_topics.Request(topics=[topic], timeout_ms=5000))).topics[0]


async def send(peer: Peer, records: bytes, *, topic: str = "t", transactional_id: str | None = None) -> None:
    """Produce a batch to partition 0."""
    data = produce.PartitionProduceData(index=0, records=records)
    to = produce.TopicProduceData(name=topic, partition_data=[data])
    request = produce.Request(acks=-1, timeout_ms=5000, topic_data=[to], transactional_id=transactional_id)
    told = (await peer.ask("Produce", request, version=11)).responses[0].partition_responses[0]
    assert told.error_code == 0, told.error_message


class Reader:
    """Reads partition 0 of a topic or view from `position` on, as clients do, and filters aborted transactions.

    `fetches` counts the Fetches, and `received_bytes` the records that they returned.
    """

    def __init__(self, peer: Peer, topic: str, topic_id: bytes, version: int, **facts: Any) -> None:
        self._peer, self._topic, self._topic_id, self._version = peer, topic, topic_id, version
        self._facts = facts
        self._partition_bytes: int = facts.pop("partition_bytes", PLENTY)
        self.position = 0
        self.records: list[Record] = []
        self.fetches = 0
        self.received_bytes = 0

    async def fetch(self) -> Any:
        """Fetch once, and take the records. Returns the row."""
        asked = want(0, self.position, max_bytes=self._partition_bytes)
        request = asking(self._topic, self._topic_id, asked, **self._facts)
        told = await self._peer.ask("Fetch", request, version=self._version)
        row = told.responses[0].partitions[0]
        assert row.error_code == 0
        self.fetches += 1
        self._take(row)
        return row

    def _take(self, row: Any) -> None:
        batches = split(bytearray(row.records)) if row.records else []
        self.received_bytes += len(row.records or b"")
        aborted = [(one.first_offset, one.producer_id) for one in row.aborted_transactions or ()]
        dropping = set()
        for batch in batches:
            assert batch.crc_ok()
            assert batch.next_offset > self.position, "the position advances with every batch"
            while aborted and aborted[0][0] <= batch.last_offset:
                dropping.add(aborted.pop(0)[1])
            if batch.is_control:
                dropping.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in dropping):
                self.records += [record for record in read_records(batch) if record.offset >= self.position]
            self.position = batch.next_offset

    async def read_to(self, end: int) -> list[Record]:
        """Fetch until the position is `end`. Each Fetch must advance the position. Returns all records."""
        while self.position < end:
            before = self.position
            await self.fetch()
            assert self.position > before, f"a Fetch from {before} returns nothing, but the log ends at {end}"
        return self.records
