"""Sends election requests to voters: Vote, BeginQuorumEpoch, EndQuorumEpoch (KIP-595, KIP-996).

Each voter has a separate connection. A request that gets no response in time is dropped, and `raft.core` repeats it
while it is needed. A later request to the same voter replaces an earlier one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.raft.addresses import Address
from kpybroker.raft.core import state as raft
from kpybroker.raft.driver import Driver, Question
from kpybroker.tasks import begin
from kpybroker.wire.api import by_name

log = logging.getLogger(__name__)

LOST = (OSError, MalformedFrame, KafkaError, TimeoutError)
"""The errors of a request to another node: no connection, a malformed response, a refusal, no response in time."""

VOTE = by_name["Vote"]
PRE_VOTE_VERSION = 2


class VoterRpcs:
    """Sends the driver's requests, and takes a step for each response."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        config = driver.config
        timeout_ms = min(config.controller_quorum_request_timeout_ms, config.controller_quorum_election_timeout_ms)
        self._timeout_s = timeout_ms / 1000
        self._peers: dict[int, Peer] = {}
        self._under_way: dict[int, tuple[Question, asyncio.Task[None]]] = {}
        self._twin_known_to: int | None = None
        """The last voter that named this node as the leader while this node requested votes."""
        self._strangers: set[int] = set()
        """The voters whose last response was that this node belongs to another cluster."""
        self.excluded: list[Callable[[str], None]] = []
        """Called with the reason when so many voters belong to another cluster that no leader can be elected."""

    def ask(self, question: Question) -> None:
        """Send a request, unless an equal request is waiting for its response."""
        earlier = self._under_way.get(question.to)
        if earlier is not None:
            if earlier[0] == question:
                return
            earlier[1].cancel()
        task = begin(self._carry(question), "asking a voter", self._driver.fail)
        self._under_way[question.to] = question, task

    @property
    def no_leader_reason(self) -> str | None:
        """The reason why no leader can be elected; None if this node does not know it."""
        me = self._driver.identity.node_id
        if self._twin_known_to is not None:
            return (
                f"voter {self._twin_known_to} reports that node {me} leads: is another node running with this node.id?"
            )
        everybody = self._everybody
        silent = [shown for shown, address in everybody.items() if address and self._is_silent(address)]
        if not silent:
            return None
        of_all = f"{len(silent)} of {len(everybody)} controllers"
        return f"{of_all} {'is' if len(silent) == 1 else 'are'} out of reach: {', '.join(silent)}"

    @property
    def lacks_majority(self) -> bool:
        """Whether no leader can be elected, because too many voters did not respond to the last request."""
        everybody = self._everybody
        silent = sum(address is not None and self._is_silent(address) for address in everybody.values())
        return 2 * (len(everybody) - silent) <= len(everybody)

    def _is_silent(self, address: Address) -> bool:
        return self._driver.addresses.is_silent(address)

    @property
    def _everybody(self) -> dict[str, Address | None]:
        """The names and addresses of the voters. If the log does not contain voters yet, these are the nodes that may
        know a leader."""
        driver = self._driver
        if not driver.voters.ids:
            own = driver.identity.listener
            others = [each for each in driver.addresses.everybody() if own is None or each != own[1:]]
            return {f"{address.host}:{address.port}": address for address in others}
        known = {voter: driver.addresses.of(voter) for voter in driver.voters.ids}
        return {f"{voter} at {at.host}:{at.port}" if at else f"{voter}": at for voter, at in known.items()}

    async def finish(self) -> None:
        """Wait until every request in progress has got its response or has been dropped."""
        await asyncio.gather(*(task for _, task in self._under_way.values()), return_exceptions=True)

    async def close(self) -> None:
        """Drop every request in progress, and close the connections."""
        tasks = [task for _, task in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            peer.close()

    async def _carry(self, question: Question) -> None:
        event: raft.Event | None = None
        address = self._driver.addresses.of(question.to)
        try:
            if address is not None:
                async with asyncio.timeout(self._timeout_s):
                    event = await self._exchange(question, address)
                self._driver.addresses.answered(address)
        except LOST as reason:
            log.debug("%s got no response: %s", question, reason)
            assert address is not None
            self._driver.addresses.unanswered(address)
            peer = self._peers.pop(question.to, None)
            if peer is not None:
                peer.close()
        finally:
            if self._under_way.get(question.to, (None,))[0] is question:
                del self._under_way[question.to]
        if event is not None:
            self._driver.take(event)

    async def _exchange(self, question: Question, address: Address) -> raft.Event | None:
        me, voters = self._driver.identity, self._driver.voters.set
        peer = self._peers.get(question.to)
        if peer is None or not peer.is_open:
            peer = await self._driver.dialer.dial(*address, client_id=me.client_id)
            self._peers[question.to] = peer
            await peer.negotiate()
        match question:
            case raft.AskVote():
                return await self._vote(peer, question)
            case raft.AskBegin():
                response = await peer.ask("BeginQuorumEpoch", me.begin(question, voters))
            case raft.AskEnd():
                response = await peer.ask("EndQuorumEpoch", me.end(question, voters))
        row = self._row_of(response, question.to)
        return None if row is None else raft.LeaderTold(row.leader_epoch, row.leader_id)

    async def _vote(self, peer: Peer, question: raft.AskVote) -> raft.Event | None:
        """Send a Vote. A voter that does not support pre-votes (KIP-996) counts as granting one, as in Kafka."""
        if question.is_pre_vote and peer.best_version(VOTE) < PRE_VOTE_VERSION:
            return raft.VoteTold(question.to, question.epoch, raft.NOBODY, True, True)
        me = self._driver.identity
        row = self._row_of(await peer.ask("Vote", me.vote(question, self._driver.voters.set)), question.to)
        if row is None:
            return None
        self._twin_known_to = question.to if row.leader_id == me.node_id else None
        return raft.VoteTold(question.to, row.leader_epoch, row.leader_id, row.vote_granted, question.is_pre_vote)

    def _row_of(self, response: Any, voter: int) -> Any:
        """Return the response's row, or None if the voter refused the whole request. The leader's address in the
        response is noted."""
        self._driver.addresses.learn((node.node_id, node.host, node.port) for node in response.node_endpoints)
        if response.error_code != ErrorCode.INCONSISTENT_CLUSTER_ID:
            self._strangers.discard(voter)
        elif voter not in self._strangers:
            self._add_stranger(voter)
        if response.error_code:
            log.warning("voter %d refused a request of this node with error code %d", voter, response.error_code)
            return None
        return next((row for topic in response.topics for row in topic.partitions), None)

    def _add_stranger(self, voter: int) -> None:
        self._strangers.add(voter)
        driver = self._driver
        strangers = [each for each in driver.voters.ids if each in self._strangers]
        if 2 * (len(driver.voters.ids) - len(strangers)) > len(driver.voters.ids):
            return
        shown = ", ".join(f"{each} at {at.host}:{at.port}" for each in strangers if (at := driver.addresses.of(each)))
        for callback in self.excluded:
            callback(
                f"the controllers {shown} belong to another cluster: this node belongs to "
                f"{driver.identity.cluster_id}; correct controller.quorum.voters, or choose this node's "
                "directory (log.dirs) in the other cluster, or an empty one, and set kpybroker.cluster.id"
            )
