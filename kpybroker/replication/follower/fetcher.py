"""Fetches from leader brokers: one connection to each, and one Fetch at a time for all partitions that the broker
leads.

A Fetch claims that all records below its offset are as durable on this broker as the settings require. So with
`kpybroker.fsync=always`, it is sent after the fdatasync. A refused partition is delayed, without a delay for the
others.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import Damage, ErrorCode, KafkaError, MalformedFrame
from kpybroker.metadata.whereabouts import address_for_brokers
from kpybroker.replication.follower.context import FetcherContext
from kpybroker.replication.follower.fetch_plan import RETRY_MS, FetchPlan
from kpybroker.replication.follower.follower_log import FetchPosition, begin_at, cut, position_of, take
from kpybroker.replication.partition.partition import Partition
from kpybroker.topics import TopicIdPartition
from kpybroker.wire.rpc import list_offsets, offset_for_leader_epoch

log = logging.getLogger(__name__)

LOST = (OSError, MalformedFrame, TimeoutError)
"""The errors of a request that failed on the network. A ConnectionError is an OSError."""
DIAL_TIMEOUT_MS = 1000
LATEST, EARLIEST = -1, -2
BY_ID = 13
SESSION_LOST = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


class Fetcher:
    """Fetches partitions from one leader broker. `follow` adds a partition, and `close` ends all fetching."""

    def __init__(self, context: FetcherContext, leader_id: int) -> None:
        self._context = context
        self._leader_id = leader_id
        self._peer: Peer | None = None
        self._is_parked = False
        self._changed = asyncio.Event()
        self._poking: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._plan = FetchPlan(context, self._loop.time)
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def __len__(self) -> int:
        return len(self._plan)

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from now on. A late response for an earlier leader epoch is dropped."""
        self._plan.follow(partition)
        self.wake()

    def written(self, partition: Partition) -> None:
        """Fetch a partition again, because a thread has written its records."""
        self._plan.written(partition)
        self.wake()

    def leave(self, partition: Partition) -> None:
        """Stop fetching a partition."""
        self._plan.leave(partition)

    def wake(self) -> None:
        """Check again which partitions to fetch. If a Fetch is parked at the leader, make the leader complete it."""
        self._changed.set()
        if self._is_parked and self._poking is None and self._peer is not None:
            self._poking = self._loop.create_task(self._poke(self._peer))

    async def _poke(self, peer: Peer) -> None:
        """Send a request of another kind on the connection, because this makes the leader complete a parked Fetch."""
        await asyncio.sleep(0)  # one request for all changes of this event
        try:
            await peer.ask("OffsetForLeaderEpoch", offset_for_leader_epoch.Request(replica_id=self._context.node_id))
        except LOST:
            return  # the parked Fetch fails in the same way
        finally:
            self._poking = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("bug: fetching from broker %d has stopped", self._leader_id, exc_info=error)

    async def close(self) -> None:
        """Stop fetching."""
        tasks = [task for task in (self._task, self._poking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._hang_up()

    def _hang_up(self) -> None:
        self._plan.session.end()
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    # ---- the loop

    async def _run(self) -> None:
        failures = 0
        while True:
            self._changed.clear()
            if not self._plan.look():
                await self._pause(self._plan.next_s())
                continue
            if not await self._sync_claims():
                continue  # do not claim records that could not be synced
            try:
                peer = await self._connected()
                told = None if self._changed.is_set() else await self._ask(peer)
            except LOST as reason:
                log.debug("fetching from broker %d: %s", self._leader_id, reason)
                self._hang_up()
                failures += 1
                backoff_ms = self._context.config().replica_fetch_backoff_ms
                await asyncio.sleep(min(RETRY_MS << min(failures - 1, 10), backoff_ms) / 1000)
                continue
            failures = 0
            if told is not None:
                await self._take_all(peer, told)

    async def _pause(self, wait_s: float | None) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _sync_claims(self) -> bool:
        """Sync the records that the next request claims, if the settings require it. Returns whether this succeeded."""
        unsynced = self._plan.unsynced()
        if unsynced:
            await asyncio.gather(*(self._sync(partition) for partition in unsynced))
        return all(partition.offline is None for partition in unsynced)

    async def _ask(self, peer: Peer) -> Any:
        """Send one Fetch, and return the response; None if the session was lost. Raises one of LOST."""
        config, plan = self._context.config(), self._plan
        next_s = plan.next_s()
        wait_ms = config.replica_fetch_wait_max_ms
        if next_s is not None:
            wait_ms = min(wait_ms, max(int(next_s * 1000), 1))
        self._is_parked = True
        try:
            async with asyncio.timeout((wait_ms + config.replica_socket_timeout_ms) / 1000):
                told = await peer.ask("Fetch", plan.request(wait_ms))
        finally:
            self._is_parked = False
        if told.error_code in SESSION_LOST:
            plan.session.end()
            return None
        if told.error_code:
            raise ConnectionError(f"broker {self._leader_id} refused a fetch with error code {told.error_code}")
        plan.session.answered(told.session_id)
        return told

    async def _take_all(self, peer: Peer, told: Any) -> None:
        """Apply a response. An error in this node's files takes the partition offline, but does not close the
        connection."""
        plan = self._plan
        lost = []
        for topic in told.responses:
            for row in topic.partitions:
                key = (topic.topic_id, row.partition_index)
                asked = plan.asked(key)
                if plan.is_left(key):
                    continue  # the row is for an old position; the response to a later Fetch is applied
                if asked is None:
                    plan.session.end()  # the leader would not repeat the row within the session
                    continue
                self._take(key, *asked, row)
                if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    lost.append(asked)
                if row.diverging_epoch is not None:
                    await asyncio.sleep(0)  # a truncation waits for the disk, so that everything else is served first
        for partition, place in lost:
            try:
                latest = await self._offset(peer, partition, place, LATEST)
                earliest = await self._offset(peer, partition, place, EARLIEST)
            except LOST as reason:
                log.debug("requesting offsets from broker %d: %s", self._leader_id, reason)
                self._hang_up()
                return
            if latest is not None and earliest is not None:
                self._move_into_range(partition, place, latest, earliest)

    def _take(self, key: TopicIdPartition, partition: Partition, place: FetchPosition, row: Any) -> None:
        if row.records and self._plan.slows(partition):
            self._context.throttle.count(len(row.records))
        try:
            take(partition, place, row)
        except KafkaError as refusal:
            self._plan.delay(key, refusal)
        except Damage as damage:
            partition.fail(str(damage))
        else:
            self._plan.served(key)

    async def _sync(self, partition: Partition) -> None:
        """Sync a partition. If its log is damaged, the partition goes offline."""
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
            raise ConnectionError(f"the metadata has no address for broker {self._leader_id}")
        async with asyncio.timeout(DIAL_TIMEOUT_MS / 1000):
            client_id = f"broker-{context.node_id}-fetcher-{self._leader_id}"
            self._peer = await context.dialer.meet(*address, client_id=client_id)
        return self._peer

    def _move_into_range(self, partition: Partition, place: FetchPosition, latest: int, earliest: int) -> None:
        """If the position is outside the leader's log, truncate to the leader's log end, or start again at the leader's
        log start."""
        try:
            if partition.leads or partition.offline is not None or place != position_of(partition):
                return
            if latest < place.offset:
                cut(partition, latest)
            elif earliest > place.offset:
                begin_at(partition, earliest)
        except KafkaError as refusal:
            self._plan.delay((partition.topic_id, partition.index), refusal)
        except Damage as damage:
            partition.fail(str(damage))

    async def _offset(self, peer: Peer, partition: Partition, place: FetchPosition, timestamp: int) -> int | None:
        """The start or end of the leader's log (ListOffsets); None if the leader refuses the request. Raises one of
        LOST."""
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
    """The fetchers of a broker, one for each leader. `follow` moves a partition to its leader's fetcher."""

    def __init__(self, context: FetcherContext) -> None:
        self._context = context
        self._by_leader: dict[int, Fetcher] = {}
        self._follows: dict[Partition, int] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from its current leader. If this broker leads it, or it has no leader, stop fetching it."""
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

    def written(self, partition: Partition) -> None:
        """Fetch a partition again, because a thread has written its records."""
        leader_id = self._follows.get(partition)
        if leader_id is not None:
            self._by_leader[leader_id].written(partition)

    def leave(self, partition: Partition) -> None:
        """Stop fetching a partition, because this broker leads it or no longer hosts it."""
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
        """Start fetching, because this broker has registered."""
        for fetcher in self._by_leader.values():
            fetcher.wake()

    async def close(self) -> None:
        """Stop all fetchers."""
        fetchers = list(self._by_leader.values())
        self._by_leader.clear()
        self._follows.clear()
        await asyncio.gather(*(fetcher.close() for fetcher in fetchers), *self._ending)
