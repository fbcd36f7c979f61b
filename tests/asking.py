"""Requests that many tests send."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import create_topics, fetch, produce

NOW_MS = 1_700_000_000_000


def batch_of(*values: bytes, first_ms: int = NOW_MS, **facts: Any) -> bytes:
    """One batch of records without keys."""
    return bytes(encode_batch([(None, value) for value in values], timestamp_ms=first_ms, **facts))


def produced(
    topic: str, *values: bytes, acks: int = 1, index: int = 0, records: bytes | None = None
) -> produce.Request:
    """A Produce of one batch to one partition, by topic name (up to v12)."""
    data = produce.PartitionProduceData(index=index, records=batch_of(*values) if records is None else records)
    return produce.Request(
        acks=acks, timeout_ms=5000, topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])]
    )


def fetched(topic: str, offset: int, wait_ms: int = 0, **facts: Any) -> fetch.Request:
    """A sessionless Fetch of one partition, by topic name (up to v12)."""
    wanted = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=facts.pop("max_bytes", 1 << 20))
    return fetch.Request(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[fetch.FetchTopic(topic=topic, partitions=[wanted])],
        **facts,
    )


async def make(
    peer: Peer, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None, replicas: int = 1
) -> bytes:
    """Create a topic. Returns its id."""
    wanted = create_topics.CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[create_topics.CreatableTopicConfig(name=n, value=v) for n, v in (configs or {}).items()],
    )
    made = await peer.ask("CreateTopics", create_topics.Request(topics=[wanted], timeout_ms=5000))
    assert made.topics[0].error_code == 0, made.topics[0].error_message
    topic_id: bytes = made.topics[0].topic_id
    return topic_id


async def put(peer: Peer, topic: str, *values: bytes, **facts: Any) -> Any:
    """Send a Produce. Returns the response row of the only partition."""
    told = await peer.ask("Produce", produced(topic, *values, **facts), version=9)
    return told.responses[0].partition_responses[0]


async def get(peer: Peer, topic: str, offset: int, **facts: Any) -> Any:
    """Send a Fetch. Returns the response row of the only partition."""
    told = await peer.ask("Fetch", fetched(topic, offset, **facts), version=12)
    return told.responses[0].partitions[0]


async def turns_while(work: Awaitable[Any]) -> int:
    """The number of turns of the event loop until this task is done."""
    working = asyncio.ensure_future(work)
    turns = 0
    while not working.done():
        await asyncio.sleep(0)
        turns += 1
    await working
    return turns
