"""Connections for clients that test authentication and authorization. Each has one login, which is never renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from kpybroker.client.peer import Peer
from kpybroker.config.login import Login
from kpybroker.errors import ErrorCode
from kpybroker.security.sasl.exchange import LoginRefused
from kpybroker.sim.clients.client import REQUEST_LIMIT_S, SimClient, Unanswered
from kpybroker.sim.clients.logins import log_in
from kpybroker.sim.clients.producing import PRODUCE_LIMIT_MS
from kpybroker.sim.clients.topic_admin import ADMIN_LIMIT_S
from kpybroker.sim.cluster.cluster import SimMachine
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import create_topics, fetch, metadata, produce

DENIED_TOPIC = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class Attempt(NamedTuple):
    """The result of a login: the reason of a refusal, or the connection and the lifetime of the login."""

    refusal: str | None
    peer: Peer | None = None
    lifetime_ms: int = 0
    at_s: float = 0.0
    """The time at which the response arrived."""


class Doors:
    """Opens connections of one client to the listeners of all nodes, and sends requests on them."""

    def __init__(self, client: SimClient, machines: Mapping[int, SimMachine]) -> None:
        self._client = client
        self._machines = machines

    def process(self, node_id: int) -> object:
        """The process that runs on a node now."""
        return self._machines[node_id].process

    def wall_ms(self, node_id: int) -> int:
        """The wall clock of a node, which may be wrong."""
        return self._machines[node_id].wall_ms()

    async def attempt(self, node_id: int, login: Login) -> Attempt:
        """Log in on a new connection. Raises Unanswered."""
        done, peer = False, None
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                peer = await self._client.dial(node_id)
                found = await self._log_in(peer, login)
                if found.peer is not None:
                    await peer.negotiate()
                    done = True
                return found
        except OSError as error:
            raise Unanswered(str(error) or "timeout") from error
        finally:
            if peer is not None and not done:
                peer.close()

    async def again(self, peer: Peer, login: Login) -> Attempt:
        """Log in again on a connection. A failure closes it. Raises Unanswered."""
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                return await self._log_in(peer, login)
        except OSError as error:
            peer.close()
            raise Unanswered(str(error) or "timeout") from error

    async def _log_in(self, peer: Peer, login: Login) -> Attempt:
        client = self._client
        try:
            lifetime_ms = await log_in(peer, login, client.random.randbytes)
        except LoginRefused as refused:
            peer.close()
            client.history.count("logins refused")
            return Attempt(str(refused))
        client.history.count("logins")
        return Attempt(None, peer, lifetime_ms, client.loop.time())

    async def ask(self, peer: Peer, name: str, request: Any, limit_s: float = REQUEST_LIMIT_S) -> Any:
        """Send a request, and return the response. Raises Unanswered."""
        try:
            async with asyncio.timeout(limit_s):
                return await peer.ask(name, request)
        except OSError as error:
            peer.close()
            raise Unanswered(str(error) or "timeout") from error

    # ---- requests

    async def write(self, peer: Peer, place: TopicPartition, topic_id: bytes) -> int:
        """Produce one record. Returns the error code of the response. Raises Unanswered."""
        name, index = place
        batch = bytes(encode_batch([(None, b"x")], timestamp_ms=self._client.wall_ms()))
        data: Any = produce.PartitionProduceData(index=index, records=batch)
        topic = produce.TopicProduceData(name=name, topic_id=topic_id, partition_data=[data])
        told = await self.ask(peer, "Produce", produce.Request(acks=1, timeout_ms=PRODUCE_LIMIT_MS, topic_data=[topic]))
        return int(told.responses[0].partition_responses[0].error_code)

    async def read(self, peer: Peer, place: TopicPartition, topic_id: bytes) -> int:
        """Fetch the first records. Returns the error code of the response. Raises Unanswered."""
        name, index = place
        row = fetch.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000)
        topic = fetch.FetchTopic(topic=name, topic_id=topic_id, partitions=[row])
        told = await self.ask(peer, "Fetch", fetch.Request(max_wait_ms=0, min_bytes=0, topics=[topic]))
        return int(told.error_code or told.responses[0].partitions[0].error_code) if told.responses else told.error_code

    async def topics(self, peer: Peer) -> set[str]:
        """The topics in a Metadata response for all topics. Raises Unanswered."""
        return {topic.name for topic in (await self.ask(peer, "Metadata", metadata.Request(topics=None))).topics}

    async def create_topic(self, peer: Peer, name: str) -> int:
        """Create a topic. Returns the error code of the response. Raises Unanswered."""
        row = create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        told = await self.ask(peer, "CreateTopics", create_topics.Request(topics=[row]), ADMIN_LIMIT_S)
        return int(told.topics[0].error_code)
