"""A client that deletes and recreates a topic repeatedly. The new topic must have no records of the old one."""

from __future__ import annotations

from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.consuming import earliest_offset
from kpybroker.sim.clients.topic_admin import create_topic, delete_topic
from kpybroker.sim.cluster.setup import TopicSetup
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import delete_records, produce

TO_THE_END = -1


class TopicRecreator:
    """Recreates the topic. `fresh` is the last recreated topic, if it is known and none of its records have been
    deleted."""

    def __init__(self, client: SimClient, replicas: int, *, pace_s: float) -> None:
        self._client = client
        self._replicas = replicas
        self._pace_s = pace_s
        self.fresh: str | None = None

    async def run(self) -> None:
        client, number = self._client, 0
        while not client.stopping:
            name, number = f"again{number}", number + 1
            try:
                await self._make(name)
                while not client.stopping:
                    await self._fill(name)
                    self.fresh = None
                    await self._shorten(name)
                    await client.nap(self._pace_s)
                    await delete_topic(client, name)
                    await self._make(name)
                    self.fresh = name
                    await self._fill(name)
                    client.history.count("topics recreated")
                    client.succeeded()
                    await client.nap(self._pace_s)
            except (Unanswered, Refused) as failed:
                self.fresh = None  # a request without a response may still take effect, so use another name from now on
                client.note(f"does not know the fate of {name}: {failed}")
                await client.nap(1.0)

    async def _make(self, name: str) -> None:
        """Create the topic. Raises Unanswered, Refused."""
        await create_topic(self._client, TopicSetup(name, 1, self._replicas, {"internal.segment.bytes": "900"}))
        self._client.forget_topic(name)

    async def _fill(self, name: str) -> None:
        """Write a few records to the topic. Raises Unanswered, Refused."""
        client = self._client
        leader = await client.leader(name, 0)
        records = [(None, b"." * 100)] * client.random.choice((1, 5, 12))
        batch = bytes(encode_batch(records, timestamp_ms=client.wall_ms()))
        topic = produce.TopicProduceData(
            name=name,
            topic_id=leader.topic_id,
            partition_data=[produce.PartitionProduceData(index=0, records=batch)],
        )
        response = await client.ask(
            leader.node_id, "Produce", produce.Request(acks=-1, timeout_ms=5000, topic_data=[topic])
        )
        _refused(response.responses[0].partition_responses[0].error_code)

    async def _shorten(self, name: str) -> None:
        """Delete all records of the topic. Raises Unanswered, Refused."""
        row = delete_records.DeleteRecordsPartition(partition_index=0, offset=TO_THE_END)
        topic = delete_records.DeleteRecordsTopic(name=name, partitions=[row])
        leader = await self._client.leader(name, 0)
        request = delete_records.Request(topics=[topic], timeout_ms=5000)
        response = await self._client.ask(leader.node_id, "DeleteRecords", request)
        _refused(response.topics[0].partitions[0].error_code)

    async def check(self, auditor: SimClient) -> None:
        """Check that the topic begins at 0. Raises Unanswered, Refused; Unanswered also if the topic does not begin at
        0."""
        if self.fresh is not None:
            auditor.forget_topic(self.fresh)
            starts = await earliest_offset(auditor, (self.fresh, 0))
            if starts:
                raise Unanswered(f"{self.fresh} was recreated, but begins at {starts}")


def _refused(code: int) -> None:
    if code:
        raise Refused(code)
