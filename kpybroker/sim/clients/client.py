"""The base of simulated clients: connections to every node, metadata, and requests with a time limit."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, NamedTuple

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.metadata.hashing import partition_of
from kpybroker.sim.clients.logins import Identity, Session
from kpybroker.sim.world.history import ON_ITS_WAY_S, WALL_BEGINS_MS, History
from kpybroker.sim.world.loop import Owner, VirtualLoop
from kpybroker.sim.world.network import Fabric, SimNetwork
from kpybroker.topics import OFFSETS_TOPIC
from kpybroker.wire.rpc import find_coordinator, metadata

REQUEST_LIMIT_S = 6.0
STOPS_WITHIN_S = 0.5
GROUP, TRANSACTION = 0, 1
"""Coordinator types of FindCoordinator."""


class Unanswered(Exception):
    """There was no response, because the connection broke, was refused or timed out. The broker may have processed the
    request."""


class Refused(Exception):
    """The response has an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = code


class KnownLeader(NamedTuple):
    """The leader of one partition."""

    node_id: int
    epoch: int
    topic_id: bytes


class SimClient:
    """One client process. It never stops on its own, but its requests may have no response."""

    def __init__(self, name: str, address: str, seed: int, fabric: Fabric, brokers: dict[int, tuple[str, int]]) -> None:
        self.name = name
        self.owner = Owner(name)
        self.loop: VirtualLoop = fabric.loop
        self.history: History = fabric.history
        self.random = Random(f"{seed} client {name}")
        self.network = SimNetwork(fabric, address, self.owner)
        self.stopping = False
        self.succeeded_at_s = 0.0
        """The time of the last successful piece of work, for the liveness check."""
        self.twins = name
        """Clients that fence each other share this value. The liveness check requires progress of only one of them."""
        self.identity: Identity | None = None
        """The identity with which the client logs in; None in clusters without logins."""
        self._hidden: frozenset[str] = frozenset()
        self._brokers = dict(brokers)
        self._peers: dict[int, Peer] = {}
        self._left_open: list[Peer] = []
        self._topics: dict[str, Any] = {}
        self._names: dict[bytes, str] = {}
        self._epochs: dict[tuple[bytes, int], int] = {}
        """The newest known leader epoch, by topic id and partition."""
        self._coordinators: dict[tuple[int, str], int] = {}

    def stop(self) -> None:
        """Finish the current piece of work, and start no new one."""
        self.stopping = True

    def log_in_as(self, identity: Identity, hidden: frozenset[str]) -> None:
        """Log in on each connection. `hidden`: topics that must never be shown to this user."""
        self.identity, self._hidden = identity, hidden

    def share(self, transactional_id: str) -> None:
        """Record that the client shares this transactional id with others, so that they fence each other."""
        self.twins = transactional_id

    def succeeded(self) -> None:
        self.succeeded_at_s = self.loop.time()

    def note(self, text: str) -> None:
        self.history.note("client", f"{self.name} {text}")

    def wall_ms(self) -> int:
        return WALL_BEGINS_MS + round(self.loop.time() * 1000)

    async def nap(self, longest_s: float) -> None:
        await asyncio.sleep(self.random.random() * longest_s)

    async def idle_until(self, at_s: float) -> bool:
        """Wait until a time of the loop. Returns False if the client must stop before that time."""
        while not self.stopping and (left_s := at_s - self.loop.time()) > 0:
            await asyncio.sleep(min(left_s, STOPS_WITHIN_S))
        return self.loop.time() >= at_s

    def any_broker(self) -> int:
        """A random broker."""
        return self.random.choice(sorted(self._brokers))

    # ---- requests

    async def peer(self, node_id: int) -> Peer:
        """A connection to a node with negotiated API versions. Raises Unanswered."""
        known = self._peers.get(node_id)
        if known is not None and known.is_open:
            return known
        if node_id not in self._brokers:
            raise Unanswered(f"node {node_id} is not known")
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                peer = await self.dial(node_id)
                if self.identity is not None:
                    await Session(self, node_id, peer, self.identity).begin()
                await peer.negotiate()
        except OSError as error:  # includes TimeoutError
            raise Unanswered(str(error) or "timeout") from error
        again = self._peers.get(node_id)
        if again is not None and again.is_open:  # another task of this client connected first
            peer.close()
            return again
        self._peers[node_id] = peer
        return peer

    async def dial(self, node_id: int) -> Peer:
        """A new connection to a known node, without a login. Raises OSError."""
        return await Peer.dial(self.network, *self._brokers[node_id], client_id=self.name)

    async def ask(
        self, node_id: int, name: str, request: Any, *, limit_s: float = REQUEST_LIMIT_S, version: int | None = None
    ) -> Any:
        """The response to a request in `version`, or in the highest version that both sides support. Raises Unanswered.

        Closes the connection if there is no response.
        """
        peer = await self.peer(node_id)
        try:
            async with asyncio.timeout(limit_s):
                return await peer.ask(name, request, version=version)
        except OSError as error:
            peer.close()
            raise Unanswered(str(error) or "timeout") from error

    def vanish(self) -> None:
        """Leave all connections open and never use them again, like a machine that has lost power."""
        self._left_open += self._peers.values()
        self._peers.clear()

    def drop(self, node_id: int) -> None:
        known = self._peers.pop(node_id, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()

    # ---- metadata

    async def refresh(self) -> Any:
        """Fetch the metadata of all topics from a random node. Raises Unanswered."""
        node_id = self.any_broker()
        found = await self.ask(node_id, "Metadata", metadata.Request(topics=None))
        if found.brokers:
            self._brokers.update({row.node_id: (row.host, row.port) for row in found.brokers})
        self._topics = {topic.name: topic for topic in found.topics}
        if self._hidden.intersection(self._topics):
            assert self.identity is not None
            self.history.breach(
                f"{self.identity.user} was shown topics that it may not describe: {sorted(self._hidden)}"
            )
        self._names = {topic.topic_id: topic.name for topic in found.topics}
        return found

    async def refresh_quietly(self) -> None:
        try:
            await self.refresh()
        except Unanswered as failed:
            self.note(f"has no metadata: {failed}")

    def forget_topic(self, name: str) -> None:
        """Remove the cached metadata of a topic, because it was wrong."""
        self._topics.pop(name, None)

    async def topic(self, name: str) -> Any:
        """The metadata of a topic. Raises Unanswered if the node does not know it."""
        known = self._topics.get(name)
        if known is None:
            await self.refresh()
            known = self._topics.get(name)
            if known is None:
                raise Unanswered(f"no metadata of {name}")
        return known

    async def leader(self, name: str, index: int) -> KnownLeader:
        """The leader according to cached metadata, which is fetched if needed. Raises Unanswered."""
        topic = await self.topic(name)
        for row in topic.partitions:
            if row.partition_index == index and row.leader_id in self._brokers:
                newest = self._epochs.get((topic.topic_id, index), -1)
                if row.leader_epoch < newest:
                    break  # the metadata is from a node that lags behind; clients never go back to an earlier leader
                self._epochs[topic.topic_id, index] = row.leader_epoch
                return KnownLeader(row.leader_id, row.leader_epoch, topic.topic_id)
        self.forget_topic(name)
        raise Unanswered(f"{name}-{index} has no known leader")

    async def coordinator(self, key: str, kind: int = GROUP) -> int:
        """The coordinator of a group or transactional id. Raises Unanswered, Refused."""
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        request = find_coordinator.Request(key_type=kind, coordinator_keys=[key])
        found = await self.ask(self.any_broker(), "FindCoordinator", request)
        row = found.coordinators[0]
        if row.error_code:
            raise Refused(row.error_code)
        self._brokers[row.node_id] = (row.host, row.port)
        self._coordinators[kind, key] = row.node_id
        return int(row.node_id)

    async def is_deposed(self, node_id: int, group: str) -> bool:
        """Whether the node that responded for a group is no longer its coordinator, although it has not noticed this
        yet (coordinators have no leases). Sends a request to every other node, and retries for the time that a node may
        be unreachable. Raises Unanswered."""
        own = await self._reign(node_id, group)
        if own is None or own.leader_id != node_id:
            return True
        doubtful = sorted(set(self._brokers) - {node_id})
        until_s = self.loop.time() + ON_ITS_WAY_S
        while doubtful and self.loop.time() < until_s:
            for other in list(doubtful):
                try:
                    response = await self._reign(other, group)
                except Unanswered:
                    continue
                if response is not None and response.leader_epoch > own.leader_epoch:
                    return True
                doubtful.remove(other)
            await self.nap(1.0)
        return False

    async def _reign(self, node_id: int, group: str) -> Any:
        """The leader and epoch of a group's partition of __consumer_offsets according to this node; None if unknown."""
        request = metadata.Request(topics=[metadata.MetadataRequestTopic(name=OFFSETS_TOPIC)])
        rows = (await self.ask(node_id, "Metadata", request)).topics[0].partitions
        return next((row for row in rows if row.partition_index == partition_of(group, len(rows))), None)

    def forget_coordinator(self, key: str, kind: int = GROUP) -> None:
        self._coordinators.pop((kind, key), None)
