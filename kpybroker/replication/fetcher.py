"""The follower's loop: one connection to one leader broker, and one Fetch at a time for all partitions it leads.

A fetch says that all below its offset is as safe here as the settings ask, so where they ask for the disk none leaves
before it is there. A partition that is refused waits a while, the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from kpybroker.config import BrokerConfig
from kpybroker.errors import Damage, ErrorCode, KafkaError, MalformedFrame
from kpybroker.metadata.image import Image
from kpybroker.metadata.whereabouts import address_for_brokers
from kpybroker.peer import Peer
from kpybroker.replication.following import Place, begin_at, cut, place_of, take
from kpybroker.replication.partition import Partition
from kpybroker.wire.rpc import fetch, list_offsets, offset_for_leader_epoch
from kpybroker.world import Network

log = logging.getLogger(__name__)

LOST = (OSError, MalformedFrame, TimeoutError)
"""What may become of a request on its way; a ConnectionError is an OSError."""
RETRY_MS = 20
"""After a first failure; doubled with each further one, up to replica.fetch.backoff.ms."""
DIAL_TIMEOUT_MS = 1000
LATEST, EARLIEST = -1, -2
BY_ID = 13
Key = tuple[bytes, int]


class Context(NamedTuple):
    """What all fetchers of a broker share."""

    network: Network
    node_id: int
    config: Callable[[], BrokerConfig]
    broker_epoch: Callable[[], int]
    image: Callable[[], Image]


class Fetcher:
    """Follows one leader broker. `follow` and `leave` say what; it ends with `close`."""

    def __init__(self, context: Context, leader_id: int) -> None:
        self._context = context
        self._leader_id = leader_id
        self._partitions: dict[Key, Partition] = {}
        self._delayed: dict[Key, tuple[float, int]] = {}
        """Until when a partition waits, and for how long it has waited last, in ms."""
        self._peer: Peer | None = None
        self._is_parked = False
        self._changed = asyncio.Event()
        self._poking: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    def __len__(self) -> int:
        return len(self._partitions)

    def follow(self, partition: Partition) -> None:
        """Fetch this partition, from now on or anew; an answer to an earlier leader epoch is dropped when it comes."""
        key = (partition.topic_id, partition.index)
        self._partitions[key] = partition
        self._delayed.pop(key, None)
        self.wake()

    def leave(self, partition: Partition) -> None:
        """Do not fetch it any more."""
        key = (partition.topic_id, partition.index)
        if self._partitions.get(key) is partition:
            del self._partitions[key]
            self._delayed.pop(key, None)

    def wake(self) -> None:
        """Look again, also where the leader keeps a fetch that knows nothing of it."""
        self._changed.set()
        if self._is_parked and self._poking is None and self._peer is not None:
            self._poking = self._loop.create_task(self._poke(self._peer))

    async def _poke(self, peer: Peer) -> None:
        """A parked Fetch gives way to a request of another kind behind it."""
        await asyncio.sleep(0)  # once for all that change in this event
        try:
            await peer.ask("OffsetForLeaderEpoch", offset_for_leader_epoch.Request(replica_id=self._context.node_id))
        except LOST:
            return  # the fetch before it says so, too
        finally:
            self._poking = None

    async def close(self) -> None:
        """Stop fetching."""
        tasks = [task for task in (self._task, self._poking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    # ---- the loop

    async def _run(self) -> None:
        failures = 0
        while True:
            self._changed.clear()
            ready = self._ready()
            if not ready:
                await self._pause(self._next_s())
                continue
            try:
                await self._fetch(ready)
                failures = 0
            except LOST as reason:
                log.debug("fetching from broker %d: %s", self._leader_id, reason)
                self._hang_up()
                failures += 1
                await asyncio.sleep(min(RETRY_MS << min(failures - 1, 10), self._backoff_ms) / 1000)

    @property
    def _backoff_ms(self) -> int:
        return self._context.config().replica_fetch_backoff_ms

    def _ready(self) -> dict[Key, tuple[Partition, Place]]:
        """What may be asked now, and from where on; nothing before this broker has registered."""
        found: dict[Key, tuple[Partition, Place]] = {}
        if self._context.broker_epoch() < 0:
            return found
        now_s = self._loop.time()
        for key, partition in list(self._partitions.items()):
            until_s, _ = self._delayed.get(key, (0.0, 0))
            if until_s > now_s or partition.offline is not None:
                continue
            try:
                found[key] = partition, place_of(partition)
            except Damage as damage:
                partition.fail(str(damage))
        return found

    def _next_s(self) -> float | None:
        """How long until a delayed partition is due."""
        due_s = min((until_s for until_s, _ in self._delayed.values()), default=None)
        return None if due_s is None else max(due_s - self._loop.time(), 0.001)

    async def _pause(self, wait_s: float | None) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _fetch(self, ready: dict[Key, tuple[Partition, Place]]) -> None:
        """One Fetch and what comes of it. Raises one of LOST."""
        config = self._context.config()
        next_s = self._next_s()
        wait_ms = config.replica_fetch_wait_max_ms
        if next_s is not None:
            wait_ms = min(wait_ms, max(int(next_s * 1000), 1))
        peer = await self._connected()
        if self._changed.is_set():
            return  # what is to be asked has changed meanwhile
        self._is_parked = True
        try:
            async with asyncio.timeout((wait_ms + config.replica_socket_timeout_ms) / 1000):
                told = await peer.ask("Fetch", self._request(ready, wait_ms))
        finally:
            self._is_parked = False
        if told.error_code:
            raise ConnectionError(f"broker {self._leader_id} refused a fetch with error code {told.error_code}")
        lost, synced = [], []
        for topic in told.responses:
            for row in topic.partitions:
                key = (topic.topic_id, row.partition_index)
                asked = ready.get(key)
                if asked is None or self._partitions.get(key) is not asked[0]:
                    continue
                if self._take(key, *asked, row):
                    synced.append(asked[0])
                if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    lost.append(asked)
        for partition in synced:
            await self._sync(partition)
        for partition, place in lost:
            await self._find_the_way(peer, partition, place)

    def _take(self, key: Key, partition: Partition, place: Place, row: Any) -> bool:
        """Whether something came that is to be synced."""
        try:
            moved = take(partition, place, row)
        except KafkaError as refusal:
            self._delay(key, partition, refusal)
            return False
        except Damage as damage:
            partition.fail(str(damage))
            return False
        self._delayed.pop(key, None)
        return moved and partition.log.settings.fsync_always

    def _delay(self, key: Key, partition: Partition, refusal: KafkaError) -> None:
        _, waited_ms = self._delayed.get(key, (0.0, 0))
        wait_ms = min(max(2 * waited_ms, RETRY_MS), self._backoff_ms)
        self._delayed[key] = self._loop.time() + wait_ms / 1000, wait_ms
        log.debug("%r: broker %d: %s", partition, self._leader_id, refusal)

    async def _sync(self, partition: Partition) -> None:
        try:
            await partition.log.sync()
        except Damage as damage:
            partition.fail(str(damage))

    # ---- requests

    async def _connected(self) -> Peer:
        if self._peer is not None and self._peer.is_open:
            return self._peer
        self._hang_up()
        context = self._context
        listener = context.config().inter_broker_listener_name
        address = address_for_brokers(context.image(), self._leader_id, listener)
        if address is None:
            raise ConnectionError(f"broker {self._leader_id} is not there")
        async with asyncio.timeout(DIAL_TIMEOUT_MS / 1000):
            client_id = f"broker-{context.node_id}-fetcher-{self._leader_id}"
            peer = await Peer.dial(context.network, *address, client_id=client_id)
            self._peer = peer  # whatever happens now, the next attempt closes it
            try:
                await peer.negotiate()
            except KafkaError as refusal:
                raise ConnectionError(str(refusal)) from refusal
        return peer

    def _request(self, ready: dict[Key, tuple[Partition, Place]], wait_ms: int) -> fetch.Request:
        config, context = self._context.config(), self._context
        topics: dict[bytes, fetch.FetchTopic] = {}
        for (topic_id, index), (partition, place) in ready.items():
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = fetch.FetchTopic(topic=partition.topic, topic_id=topic_id, partitions=[])
            topic.partitions.append(
                fetch.FetchPartition(
                    partition=index,
                    current_leader_epoch=place.leader_epoch,
                    fetch_offset=place.offset,
                    last_fetched_epoch=place.last_epoch,
                    log_start_offset=partition.log.start,
                    partition_max_bytes=config.replica_fetch_max_bytes,
                )
            )
        return fetch.Request(
            replica_id=context.node_id,
            replica_state=fetch.ReplicaState(replica_id=context.node_id, replica_epoch=context.broker_epoch()),
            max_wait_ms=wait_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            topics=list(topics.values()),
        )

    async def _find_the_way(self, peer: Peer, partition: Partition, place: Place) -> None:
        """The leader's log does not reach to here, or begins later. Raises one of LOST."""
        latest = await self._offset(peer, partition, place, LATEST)
        earliest = await self._offset(peer, partition, place, EARLIEST)
        if latest is None or earliest is None or partition.leads or place != place_of(partition):
            return
        try:
            if latest < place.offset:
                cut(partition, latest)
            elif earliest > place.offset:
                begin_at(partition, earliest)
        except Damage as damage:
            partition.fail(str(damage))

    async def _offset(self, peer: Peer, partition: Partition, place: Place, timestamp: int) -> int | None:
        row = list_offsets.ListOffsetsPartition(
            partition_index=partition.index, current_leader_epoch=place.leader_epoch, timestamp=timestamp
        )
        request = list_offsets.Request(
            replica_id=self._context.node_id,
            topics=[list_offsets.ListOffsetsTopic(name=partition.topic, partitions=[row])],
        )
        async with asyncio.timeout(self._context.config().replica_socket_timeout_ms / 1000):
            told = await peer.ask("ListOffsets", request)
        found = told.topics[0].partitions[0]
        return None if found.error_code else int(found.offset)


class Fetchers:
    """The fetchers of a broker, by leader. `follow` moves a partition to the right one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._by_leader: dict[int, Fetcher] = {}
        self._follows: dict[Partition, int] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def follow(self, partition: Partition) -> None:
        """Fetch from whoever leads it now: from nobody where that is this broker, or where nobody leads."""
        leader_id = partition.leader_id
        known = self._follows.get(partition)
        if known is not None and known != leader_id:
            self.leave(partition)
        if leader_id < 0 or partition.leads or partition.offline is not None:
            return
        fetcher = self._by_leader.get(leader_id)
        if fetcher is None:
            fetcher = self._by_leader[leader_id] = Fetcher(self._context, leader_id)
        self._follows[partition] = leader_id
        fetcher.follow(partition)

    def leave(self, partition: Partition) -> None:
        """This replica leads, or is not here any more."""
        leader_id = self._follows.pop(partition, None)
        if leader_id is None:
            return
        fetcher = self._by_leader[leader_id]
        fetcher.leave(partition)
        if not len(fetcher):
            del self._by_leader[leader_id]
            ending = asyncio.get_running_loop().create_task(fetcher.close())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def wake(self) -> None:
        """This broker has registered."""
        for fetcher in self._by_leader.values():
            fetcher.wake()

    async def close(self) -> None:
        """Stop all."""
        fetchers = list(self._by_leader.values())
        self._by_leader.clear()
        self._follows.clear()
        await asyncio.gather(*(fetcher.close() for fetcher in fetchers), *self._ending)
