"""What a node of the quorum tells its leader of itself (KIP-853): where it listens now, or that it wants to vote.

A voter whose log has another address for it says so (UpdateRaftVoter). A controller with
`controller.quorum.auto.join.enable` that is no voter asks to become one (AddRaftVoter), and has what it was on another
directory removed first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from kpybroker.peer import Peer
from kpybroker.raft.asking import LOST
from kpybroker.raft.state import Role
from kpybroker.raft.tasks import begin

if TYPE_CHECKING:
    from kpybroker.raft.quorum import Quorum
    from kpybroker.world import World

log = logging.getLogger(__name__)


class Joining:
    """One task that runs while the node does; it asks while what it wants is not so."""

    def __init__(self, world: World, quorum: Quorum) -> None:
        self._world = world
        self._quorum = quorum
        self._period_s = quorum.config.controller_quorum_fetch_timeout_ms / 1000
        self._patience_s = quorum.config.controller_quorum_request_timeout_ms / 1000
        self._changed = asyncio.Event()
        self._told_in = (-1, -1)
        """Epoch and leader that this voter has told of itself, at kraft.version 0."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; `look` says when there may be something to tell."""
        self._task = begin(self._run(), "telling the leader of the quorum of this node", self._quorum.fail)

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
                await self._ask(*question)
            except LOST as reason:
                log.debug("%s was not answered: %s", question[0], reason)
            await asyncio.sleep(self._period_s)

    def _question(self) -> tuple[str, Any] | None:
        """What the leader should know and does not."""
        quorum = self._quorum
        state, me = quorum.state, quorum.identity.voter
        if state.role is not Role.FOLLOWER or not me.endpoints or quorum.addresses.of(state.leader_id) is None:
            return None
        if not quorum.kraft_version:
            knows = self._told_in == (state.epoch, state.leader_id) or not state.is_voter
            return None if knows else ("UpdateRaftVoter", quorum.identity.updated(state.epoch))
        if state.is_voter:
            return None if me in quorum.voters.set.voters else ("UpdateRaftVoter", quorum.identity.updated(state.epoch))
        if not quorum.config.controller_quorum_auto_join_enable or not quorum.is_current:
            return None
        former = quorum.voters.set.get(me.node_id)
        if former is not None:
            return "RemoveRaftVoter", quorum.identity.removed(former)
        return "AddRaftVoter", quorum.identity.added(quorum.config.controller_quorum_request_timeout_ms)

    async def _ask(self, name: str, request: Any) -> None:
        """One question. Raises one of LOST."""
        quorum = self._quorum
        epoch, leader_id = quorum.epoch, quorum.leader_id
        address = quorum.addresses.of(leader_id)
        if address is None:
            return
        peer = None
        try:
            async with asyncio.timeout(self._patience_s):
                peer = await Peer.dial(self._world.network, *address, client_id=quorum.identity.client_id)
                await peer.negotiate()
                told = await peer.ask(name, request)
        finally:
            if peer is not None:
                peer.close()
        if told.error_code:
            log.info("the leader of the quorum, %d, answers %s with error code %d", leader_id, name, told.error_code)
        elif name == "UpdateRaftVoter":
            self._told_in = epoch, leader_id
