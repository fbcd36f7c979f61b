"""The follower's side of replication: fetches from the leader, appends and syncs, and fetches again (KIP-595, KIP-630).

A Fetch from an offset means that every record below the offset is on this node's disk, so a Fetch is sent only after
the sync. There is one request at a time, on a separate connection, which is closed when the leader changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kpybroker.client.peer import Peer
from kpybroker.errors import ConfigError, Damage, ErrorCode, KafkaError, MalformedFrame
from kpybroker.raft.addresses import Address
from kpybroker.raft.core import state as raft
from kpybroker.raft.core.divergence import Diverges
from kpybroker.raft.core.state import Role, Tail
from kpybroker.raft.driver import Driver
from kpybroker.raft.duties.readiness import Readiness
from kpybroker.raft.duties.voter_rpcs import LOST
from kpybroker.tasks import begin
from kpybroker.wire.records.batch import Batch, whole_batches

if TYPE_CHECKING:
    from kpybroker.world import World

log = logging.getLogger(__name__)

WAIT_MS = 500
"""The time for which a leader may hold a fetch when it has nothing new (Kafka's value)."""
TWIN_TIMEOUTS = 3
"""The number of fetch timeouts after which other nodes no longer name this node as the leader, if it led before it lost
its directory."""
REFUSALS = 2
"""The number of refused connections in a row that show that the leader's process has ended."""


class FetchSource(NamedTuple):
    """The node to fetch from, and the epoch. The node id is -1 for a node that may know the leader."""

    node_id: int
    epoch: int
    address: Address


class MetadataFetcher:
    """A task that fetches while the node is a follower, or an observer that looks for the leader."""

    def __init__(self, world: World, driver: Driver, readiness: Readiness) -> None:
        self._world = world
        self._driver = driver
        self._readiness = readiness
        self._config = driver.config
        self._timeout_s = self._config.controller_quorum_request_timeout_ms / 1000
        self._peer: Peer | None = None
        self._source: FetchSource | None = None
        self._refusals = 0
        self._twin_since_ms: int | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task."""
        self._task = begin(self._run(), "fetching metadata", self._driver.fail)

    async def close(self) -> None:
        """Stop fetching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._hang_up()

    def look_again(self) -> None:
        """Cancel a fetch that no longer matters, because the role, leader, epoch or voters have changed."""
        self._changed.set()
        if self._source is not None and not self._matters(self._source):
            self._hang_up()

    def _hang_up(self) -> None:
        if self._peer is not None:
            self._peer.close()
        self._peer = self._source = None

    def _matters(self, source: FetchSource) -> bool:
        state = self._driver.state
        if source.node_id == raft.NOBODY:
            return self.looks_for_a_leader
        return state.role is Role.FOLLOWER and (state.leader_id, state.epoch) == (source.node_id, source.epoch)

    @property
    def looks_for_a_leader(self) -> bool:
        """Whether this node looks for the leader. An observer sends its Fetch to any node; a voter waits for
        BeginQuorumEpoch, or for its own election."""
        state = self._driver.state
        return state.role in (Role.UNATTACHED, Role.RESIGNED) and not state.may_stand

    def _next_source(self) -> FetchSource | None:
        """The leader or, for an observer that knows no leader, any known node; None if there is no node to fetch
        from."""
        if self._source is not None:
            return self._source
        state = self._driver.state
        if state.role is Role.FOLLOWER:
            address = self._driver.addresses.of(state.leader_id)
            return None if address is None else FetchSource(state.leader_id, state.epoch, address)
        if not self.looks_for_a_leader:
            return None
        anybody = self._driver.addresses.anybody()
        return None if anybody is None else FetchSource(raft.NOBODY, state.epoch, anybody)

    async def _run(self) -> None:
        """Fetch until cancelled, or until this node cannot continue."""
        while True:
            self._changed.clear()
            source = self._next_source()
            if source is None:
                await self._changed.wait()
                continue
            try:
                await self._fetch_once(source)
                self._refusals = 0
            except LOST as reason:
                log.debug("fetching from %s: %s", source, reason)
                if not isinstance(reason, KafkaError):
                    self._driver.addresses.unanswered(source.address)
                self._hang_up()
                self._count_refusals(source, isinstance(reason, ConnectionRefusedError))
                await asyncio.sleep(self._config.controller_quorum_retry_backoff_ms / 1000)
            except (Damage, ConfigError) as reason:
                self._driver.fail(str(reason))
                return

    def _count_refusals(self, source: FetchSource, is_refusal: bool) -> None:
        self._refusals = self._refusals + 1 if is_refusal else 0
        if self._refusals >= REFUSALS:
            self._refusals = 0
            self._driver.step(raft.LeaderGone(source.node_id, source.epoch))

    async def _fetch_once(self, source: FetchSource) -> None:
        """Send one Fetch and handle its response. Raises Damage, or one of LOST."""
        driver = self._driver
        await driver.metadata.synced()
        if not self._matters(source):
            # the leader has changed since: with this connection open, its old leader would stay the source for ever
            self._hang_up()
            return
        async with asyncio.timeout(self._timeout_s):
            peer = await self._connect(source)
            if not driver.metadata.is_safe:
                return  # new records are not on disk yet, and a fetch must not claim them
            request = driver.identity.fetch(
                driver.epoch,
                driver.metadata.tail,
                log_start=driver.log.start,
                high_watermark=driver.state.high_watermark,
                wait_ms=WAIT_MS,
                max_bytes=self._config.controller_quorum_fetch_max_bytes,
            )
            response = await peer.ask("Fetch", request)
        driver.addresses.answered(source.address)
        driver.addresses.learn((node.node_id, node.host, node.port) for node in response.node_endpoints)
        self._check_membership(source, response)
        if response.error_code:
            raise _refusal(response.error_code)
        row = next((row for topic in response.responses for row in topic.partitions), None)
        if row is None:
            raise MalformedFrame("the response to a Fetch does not contain its partition")
        if row.current_leader is not None:
            driver.step(raft.LeaderTold(row.current_leader.leader_epoch, row.current_leader.leader_id))
        if row.error_code:
            raise _refusal(row.error_code)
        if self._matters(source) and source.node_id != raft.NOBODY:
            driver.addresses.all_may_answer()
            await self._take(source, row)

    def _check_membership(self, source: FetchSource, response: Any) -> None:
        """Raise ConfigError if this node can never follow this quorum: the quorum belongs to another cluster, or its
        leader is another node with the same id."""
        driver = self._driver
        if response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            self._readiness.refuse(
                f"the controllers at {source.address.host}:{source.address.port} belong to another cluster: this node "
                f"belongs to {driver.identity.cluster_id}; correct the addresses of the controllers, or choose an "
                "empty directory (log.dirs) and set kpybroker.cluster.id"
            )
        rows = [row for topic in response.responses for row in topic.partitions]
        leaders = [row.current_leader.leader_id for row in rows if row.current_leader is not None]
        if source.node_id != raft.NOBODY or driver.identity.node_id not in leaders:
            self._twin_since_ms = None
            return
        now_ms = self._world.steady_ms()
        since_ms = self._twin_since_ms = now_ms if self._twin_since_ms is None else self._twin_since_ms
        if now_ms - since_ms > TWIN_TIMEOUTS * self._config.controller_quorum_fetch_timeout_ms:
            self._readiness.refuse(
                f"node {driver.identity.node_id} leads the metadata quorum, and this node has the same id; "
                "give every node a node.id of its own"
            )

    async def _connect(self, source: FetchSource) -> Peer:
        if self._peer is None or not self._peer.is_open:
            self._hang_up()
            client_id = self._driver.identity.client_id
            peer = await self._driver.dialer.dial(*source.address, client_id=client_id)
            self._peer, self._source = peer, source
            await peer.negotiate()
            if self._peer is not peer:
                raise ConnectionError("the leader has changed")
        return self._peer

    async def _take(self, source: FetchSource, row: Any) -> None:
        """Handle the row of a Fetch response from the leader of this epoch."""
        driver = self._driver
        agreed = 0
        if row.diverging_epoch is not None and row.diverging_epoch.end_offset >= 0:
            driver.metadata.truncate(Diverges(row.diverging_epoch.epoch, row.diverging_epoch.end_offset))
        elif row.snapshot_id is not None and row.snapshot_id.end_offset >= 0:
            await self._fetch_snapshot(source, Tail(row.snapshot_id.epoch, row.snapshot_id.end_offset))
        else:
            if row.records:
                driver.metadata.append_fetched(_sound(whole_batches(row.records), driver.log.end))
            agreed = row.high_watermark
        driver.step(raft.Followed(source.node_id, source.epoch, agreed))
        self._readiness.leader_committed(source.epoch, agreed)

    async def _fetch_snapshot(self, source: FetchSource, snapshot: Tail) -> None:
        log.info(
            "the leader's log starts after the end of this node's log; fetching the leader's snapshot of offset %d",
            snapshot.end,
        )
        received = await self._driver.metadata.snapshots.receive(snapshot, self._pieces(source, snapshot))
        if self._matters(source):
            self._driver.metadata.install(received)

    async def _pieces(self, source: FetchSource, snapshot: Tail) -> AsyncIterator[bytes]:
        """The snapshot's bytes, in order. Each piece shows that the leader is running."""
        driver, position, size = self._driver, 0, 1
        while position < size:
            async with asyncio.timeout(self._timeout_s):
                peer = await self._connect(source)
                request = driver.identity.fetch_snapshot(
                    source.epoch, snapshot, position, self._config.controller_quorum_fetch_snapshot_max_bytes
                )
                response = await peer.ask("FetchSnapshot", request)
            piece = next((piece for topic in response.topics for piece in topic.partitions), None)
            if response.error_code or piece is None or piece.error_code:
                raise _refusal(response.error_code or (piece.error_code if piece is not None else -1))
            found = bytes(piece.unaligned_records or b"")
            if piece.position != position or not found:
                raise MalformedFrame(
                    f"a piece of a snapshot has {len(found)} bytes from {piece.position}, not from {position}"
                )
            driver.step(raft.Followed(source.node_id, source.epoch, 0))
            if not self._matters(source):
                raise ConnectionError("the leader has changed")
            position, size = position + len(found), piece.size
            yield found


def _refusal(code: int) -> KafkaError:
    try:
        known = ErrorCode(code)
    except ValueError:
        known = ErrorCode.UNKNOWN_SERVER_ERROR
    return KafkaError(known, f"the leader responded with error code {code}")


def _sound(batches: list[Batch], end: int) -> list[Batch]:
    """Return the batches, if there are any, and they are intact and continue a log that ends at `end`. Raises
    MalformedFrame."""
    if not batches:
        raise MalformedFrame("the leader's response has no complete batch")
    for batch in batches:
        if batch.base_offset != end or not batch.crc_ok():
            raise MalformedFrame(
                f"the batch from offset {batch.base_offset} has a wrong CRC, or does not follow offset {end}"
            )
        end = batch.next_offset
    return batches
