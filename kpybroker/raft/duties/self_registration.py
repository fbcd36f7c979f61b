"""Sends the requests with which a node registers itself with the leader (KIP-853): to report a new address, or to
become a voter.

A voter sends UpdateRaftVoter if its address is not the one in the log. A controller that is not a voter sends
AddRaftVoter if `controller.quorum.auto.join.enable` is true. If the log contains a voter with its id and another
directory, the node first sends RemoveRaftVoter for that voter, unless a node with that directory is running: two
running nodes with the same id would replace each other for ever.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from kpybroker.raft.core.state import Role
from kpybroker.raft.core.voter_set import Voter
from kpybroker.raft.driver import Driver
from kpybroker.raft.duties.fetching import WAIT_MS
from kpybroker.raft.duties.readiness import Readiness
from kpybroker.raft.duties.voter_rpcs import LOST
from kpybroker.tasks import begin
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc import describe_quorum

log = logging.getLogger(__name__)

LOOK_S = 3 * WAIT_MS / 1000
"""The time after which a running voter has certainly fetched again."""
SLACK_MS = 100
"""The tolerance when a voter's idle time is compared with LOOK_S, because clocks count whole milliseconds."""


def fetches(idle_ms: int | None) -> bool | None:
    """Whether a voter is running, LOOK_S after the first check; None if that is unclear, because the voter may be slow.

    `idle_ms` is the time since the voter's last fetch, or None if it has never fetched.
    """
    if idle_ms is None or idle_ms >= 1000 * LOOK_S - SLACK_MS:
        return False
    return True if idle_ms <= 2 * WAIT_MS else None


class SelfRegistration:
    """A task that sends this node's requests until the log contains the requested change."""

    def __init__(self, driver: Driver, readiness: Readiness) -> None:
        self._driver = driver
        self._readiness = readiness
        self._period_s = driver.config.controller_quorum_fetch_timeout_ms / 1000
        self._timeout_s = driver.config.controller_quorum_request_timeout_ms / 1000
        self._changed = asyncio.Event()
        self._updated_in = (-1, -1)
        """At kraft.version 0: the leader that accepted this voter's UpdateRaftVoter, and its epoch."""
        self._awaits_current = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task."""
        self._task = begin(self._run(), "registering this node with the leader of the quorum", self._driver.fail)

    async def close(self) -> None:
        """Stop the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look_again(self) -> None:
        """Check again whether a request is due, because the role, leader, epoch or voters have changed."""
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            request = self._next_request()
            if request is None:
                await self._changed.wait()
                continue
            try:
                await self._send(*request)
            except LOST as reason:
                log.debug("%s got no response: %s", request[0], reason)
            await asyncio.sleep(self._period_s)

    def _next_request(self) -> tuple[str, Any] | None:
        """The name and the body of the next request that is due; None if no request is due."""
        driver = self._driver
        state, me = driver.state, driver.identity.voter
        if state.role is not Role.FOLLOWER or not me.endpoints or driver.addresses.of(state.leader_id) is None:
            return None
        if not driver.kraft_version:
            knows = self._updated_in == (state.epoch, state.leader_id) or not state.is_voter
            return None if knows else ("UpdateRaftVoter", driver.identity.updated(state.epoch))
        if state.is_voter:
            return None if me in driver.voters.set.voters else ("UpdateRaftVoter", driver.identity.updated(state.epoch))
        if not driver.config.controller_quorum_auto_join_enable:
            return None
        if not self._readiness.is_current:
            self._await_current()
            return None
        former = driver.voters.set.get(me.node_id)
        if former is not None:
            return "RemoveRaftVoter", driver.identity.removed(former)
        return "AddRaftVoter", driver.identity.added(driver.config.controller_quorum_request_timeout_ms)

    def _await_current(self) -> None:
        """Check again when the Image is current. After a snapshot, nothing else may change by then."""
        if not self._awaits_current:
            self._awaits_current = True
            self._readiness.when_current(self._became_current)

    def _became_current(self) -> None:
        self._awaits_current = False
        self.look_again()

    async def _send(self, name: str, request: Any) -> None:
        """Send a request, and log a refusal. Raises one of LOST."""
        driver = self._driver
        epoch, leader_id = driver.epoch, driver.leader_id
        if name == "RemoveRaftVoter" and not await self._is_gone(request.voter_id, request.voter_directory_id):
            return
        response = await self._ask(name, request)
        if response.error_code:
            log.info(
                "the leader of the quorum, node %d, responded to %s with error code %d",
                leader_id,
                name,
                response.error_code,
            )
        elif name == "UpdateRaftVoter":
            self._updated_in = epoch, leader_id

    async def _is_gone(self, node_id: int, directory_id: bytes) -> bool:
        """Whether the voter is not running. If it is running, this node stops. Raises one of LOST."""
        driver = self._driver
        epoch = driver.epoch
        await asyncio.sleep(LOOK_S)
        does_fetch = fetches(await self._idle_ms(node_id, directory_id))
        if does_fetch and driver.voters.set.has(node_id, directory_id):
            driver.fail(
                f"node {Voter(node_id, directory_id)} is a running voter; this node has the same id and "
                "would replace it (controller.quorum.auto.join.enable); give every node a node.id of its own"
            )
        return does_fetch is False and driver.epoch == epoch

    async def _idle_ms(self, node_id: int, directory_id: bytes) -> int | None:
        """The time since a voter's last fetch; None if it has never fetched. Raises one of LOST.

        The current time and the time of the fetch are taken from the same response, because the leader's clock may be
        changed between two responses. The leader lists itself as a replica that is fetching now.
        """
        topic = describe_quorum.TopicData(topic_name=METADATA_TOPIC, partitions=[describe_quorum.PartitionData()])
        response = await self._ask("DescribeQuorum", describe_quorum.Request(topics=[topic]))
        voters = [voter for rows in response.topics for row in rows.partitions for voter in row.current_voters]
        times = {(each.replica_id, each.replica_directory_id): each.last_fetch_timestamp for each in voters}
        fetched_ms = times.get((node_id, directory_id), -1)
        now_ms = max(times.values(), default=-1)
        return now_ms - fetched_ms if fetched_ms >= 0 else None

    async def _ask(self, name: str, request: Any) -> Any:
        """The leader's response. Raises one of LOST."""
        driver = self._driver
        address = driver.addresses.of(driver.leader_id)
        if address is None:
            raise ConnectionError("there is no leader, or its address is not known")
        peer = None
        try:
            async with asyncio.timeout(self._timeout_s):
                peer = await driver.dialer.meet(*address, client_id=driver.identity.client_id)
                return await peer.ask(name, request)
        finally:
            if peer is not None:
                peer.close()
