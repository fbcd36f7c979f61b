"""What a node of the quorum tells its leader of itself (KIP-853): where it listens now, or that it wants to vote.

A voter whose log has another address for it says so (UpdateRaftVoter). A controller with
`controller.quorum.auto.join.enable` that is no voter asks to become one (AddRaftVoter), and has what it was on another
directory removed first, unless that runs: then there are two nodes of one id, which would replace each other for ever.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from kpybroker.client.peer import Peer
from kpybroker.raft.core.state import Role
from kpybroker.raft.core.voter_set import Voter
from kpybroker.raft.driver import Driver
from kpybroker.raft.duties.fetching import WAIT_MS
from kpybroker.raft.duties.readiness import Current
from kpybroker.raft.duties.voter_rpcs import LOST
from kpybroker.tasks import begin
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc import describe_quorum

if TYPE_CHECKING:
    from kpybroker.world import World

log = logging.getLogger(__name__)

LOOK_S = 3 * WAIT_MS / 1000
"""In so long a voter that lives has fetched again."""
SLACK_MS = 100
"""A voter that stopped before LOOK_S has not fetched for at least so much less: clocks count in whole ms."""


def fetches(idle_ms: int | None) -> bool | None:
    """Whether a voter runs that had not fetched for `idle_ms` (None: never) LOOK_S after the first look at it.

    None where that does not tell: it may be slow.
    """
    if idle_ms is None or idle_ms >= 1000 * LOOK_S - SLACK_MS:
        return False
    return True if idle_ms <= 2 * WAIT_MS else None


class Joining:
    """One task that runs while the node does; it asks while what it wants is not so."""

    def __init__(self, world: World, driver: Driver, current: Current) -> None:
        self._world = world
        self._driver = driver
        self._current = current
        self._period_s = driver.config.controller_quorum_fetch_timeout_ms / 1000
        self._patience_s = driver.config.controller_quorum_request_timeout_ms / 1000
        self._changed = asyncio.Event()
        self._told_in = (-1, -1)
        """The epoch and leader to which this voter has last sent its addresses, at kraft.version 0."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; `look` says when there may be something to tell."""
        self._task = begin(self._run(), "telling the leader of the quorum of this node", self._driver.fail)

    async def close(self) -> None:
        """Tell nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look(self) -> None:
        """Leader, epoch or voters are others now."""
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            question = self._question()
            if question is None:
                await self._changed.wait()
                continue
            try:
                await self._tell(*question)
            except LOST as reason:
                log.debug("%s was not answered: %s", question[0], reason)
            await asyncio.sleep(self._period_s)

    def _question(self) -> tuple[str, Any] | None:
        """What the leader should know and does not."""
        driver = self._driver
        state, me = driver.state, driver.identity.voter
        if state.role is not Role.FOLLOWER or not me.endpoints or driver.addresses.of(state.leader_id) is None:
            return None
        if not driver.kraft_version:
            knows = self._told_in == (state.epoch, state.leader_id) or not state.is_voter
            return None if knows else ("UpdateRaftVoter", driver.identity.updated(state.epoch))
        if state.is_voter:
            return None if me in driver.voters.set.voters else ("UpdateRaftVoter", driver.identity.updated(state.epoch))
        if not driver.config.controller_quorum_auto_join_enable or not self._current.is_current:
            return None
        former = driver.voters.set.get(me.node_id)
        if former is not None:
            return "RemoveRaftVoter", driver.identity.removed(former)
        return "AddRaftVoter", driver.identity.added(driver.config.controller_quorum_request_timeout_ms)

    async def _tell(self, name: str, request: Any) -> None:
        """Tell it, and see whether it was taken. Raises one of LOST."""
        driver = self._driver
        epoch, leader_id = driver.epoch, driver.leader_id
        if name == "RemoveRaftVoter" and not await self._is_gone(request.voter_id, request.voter_directory_id):
            return
        told = await self._ask(name, request)
        if told.error_code:
            log.info("the leader of the quorum, %d, answers %s with error code %d", leader_id, name, told.error_code)
        elif name == "UpdateRaftVoter":
            self._told_in = epoch, leader_id

    async def _is_gone(self, node_id: int, directory_id: bytes) -> bool:
        """Whether no node has fetched under that voter's id for LOOK_S, as the leader sees it. Raises one of LOST."""
        driver = self._driver
        epoch = driver.epoch
        await asyncio.sleep(LOOK_S)
        does_fetch = fetches(await self._idle_ms(node_id, directory_id))
        if does_fetch and driver.voters.set.has(node_id, directory_id):
            driver.fail(
                f"node {Voter(node_id, directory_id)} votes and runs, and this is another node of that id, which would "
                "take its place (controller.quorum.auto.join.enable); give every node a node.id of its own"
            )
        return does_fetch is False and driver.epoch == epoch

    async def _idle_ms(self, node_id: int, directory_id: bytes) -> int | None:
        """For how long a voter has not fetched, None where it never has. Raises one of LOST.

        Both times are of one answer, in which the leader itself has fetched now: its clock may be set between two.
        """
        topic = describe_quorum.TopicData(topic_name=METADATA_TOPIC, partitions=[describe_quorum.PartitionData()])
        told = await self._ask("DescribeQuorum", describe_quorum.Request(topics=[topic]))
        voters = [voter for rows in told.topics for row in rows.partitions for voter in row.current_voters]
        times = {(each.replica_id, each.replica_directory_id): each.last_fetch_timestamp for each in voters}
        fetched_ms = times.get((node_id, directory_id), -1)
        now_ms = max(times.values(), default=-1)
        return now_ms - fetched_ms if fetched_ms >= 0 else None

    async def _ask(self, name: str, request: Any) -> Any:
        """The leader's answer. Raises one of LOST."""
        driver = self._driver
        address = driver.addresses.of(driver.leader_id)
        if address is None:
            raise ConnectionError("nobody leads, or nobody says where")
        peer = None
        try:
            async with asyncio.timeout(self._patience_s):
                peer = await Peer.meet(self._world.network, *address, client_id=driver.identity.client_id)
                return await peer.ask(name, request)
        finally:
            if peer is not None:
                peer.close()
