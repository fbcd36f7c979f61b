"""The follower's loop: one connection to one leader broker, and one Fetch at a time for all partitions it leads.

A fetch says that all below its offset is as safe here as the settings ask, so where they ask for the disk none leaves
before it is there. A partition that is refused waits a while, the others go on.
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
from kpybroker.replication.follower.fetch_session import Key
from kpybroker.replication.follower.follower_log import FetchPosition, begin_at, cut, position_of, take
from kpybroker.replication.partition.partition import Partition
from kpybroker.wire.rpc import list_offsets, offset_for_leader_epoch

log = logging.getLogger(__name__)

LOST = (OSError, MalformedFrame, TimeoutError)
"""What may become of a request on its way; a ConnectionError is an OSError."""
DIAL_TIMEOUT_MS = 1000
LATEST, EARLIEST = -1, -2
BY_ID = 13
SESSION_LOST = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


class Fetcher:
    """Follows one leader broker. `follow` and `leave` say what; it ends with `close`."""

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
        """Fetch this partition, from now on or anew; an answer to an earlier leader epoch is dropped when it comes."""
        self._plan.follow(partition)
        self.wake()

    def written(self, partition: Partition) -> None:
        """It may be fetched again: a thread has written what came."""
        self._plan.written(partition)
        self.wake()

    def leave(self, partition: Partition) -> None:
        """Do not fetch it any more."""
        self._plan.leave(partition)

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

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("bug in fetching from broker %d, which ends", self._leader_id, exc_info=error)

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
            if not await self._are_safe():
                continue  # what could not be made safe is not asked for as if it were
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

    async def _are_safe(self) -> bool:
        """What the next request claims to have is on disk, where the settings ask for that."""
        unsynced = self._plan.unsynced()
        if unsynced:
            await asyncio.gather(*(self._sync(partition) for partition in unsynced))
        return all(partition.offline is None for partition in unsynced)

    async def _ask(self, peer: Peer) -> Any:
        """The answer to one Fetch, None where there is nothing to take from it. Raises one of LOST."""
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
        """What comes of an answer. Files that fail here are those of a log, which says so: no connection is lost."""
        plan = self._plan
        lost = []
        for topic in told.responses:
            for row in topic.partitions:
                key = (topic.topic_id, row.partition_index)
                asked = plan.asked(key)
                if plan.is_left(key):
                    continue  # asked for by an earlier Fetch; a later one tells more, and what comes then is taken
                if asked is None:
                    plan.session.end()  # what is dropped would not be told again
                    continue
                self._take(key, *asked, row)
                if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    lost.append(asked)
        for partition, place in lost:
            try:
                latest = await self._offset(peer, partition, place, LATEST)
                earliest = await self._offset(peer, partition, place, EARLIEST)
            except LOST as reason:
                log.debug("asking broker %d for offsets: %s", self._leader_id, reason)
                self._hang_up()
                return
            if latest is not None and earliest is not None:
                self._find_the_way(partition, place, latest, earliest)

    def _take(self, key: Key, partition: Partition, place: FetchPosition, row: Any) -> None:
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
        """What a fetch claims to have is on disk, whoever led when it came."""
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
            self._peer = await Peer.meet(context.network, *address, client_id=client_id)
        return self._peer

    def _find_the_way(self, partition: Partition, place: FetchPosition, latest: int, earliest: int) -> None:
        """The leader's log does not reach to here, or begins later."""
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
        """Raises one of LOST."""
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

    def __init__(self, context: FetcherContext) -> None:
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

    def written(self, partition: Partition) -> None:
        """A thread has written what came of it."""
        leader_id = self._follows.get(partition)
        if leader_id is not None:
            self._by_leader[leader_id].written(partition)

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
