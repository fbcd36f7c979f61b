"""The requests of a node to the voters: Vote, BeginQuorumEpoch, EndQuorumEpoch, over one connection for each voter.

A request that is not answered in time is dropped: `raft.core` asks again while it matters. A later request to the
same voter replaces an earlier one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import KafkaError, MalformedFrame
from kpybroker.raft.addresses import Address, Addresses
from kpybroker.raft.core import state as raft
from kpybroker.raft.log.identity import Identity
from kpybroker.raft.log.voters import Voters
from kpybroker.tasks import begin
from kpybroker.wire.api import by_name
from kpybroker.world import Network

log = logging.getLogger(__name__)

LOST = (OSError, MalformedFrame, KafkaError, TimeoutError)
"""What may become of a question on its way: no connection, a reply that is none, a refusal, silence."""

Question = raft.AskVote | raft.AskBegin | raft.AskEnd
VOTE = by_name["Vote"]
PRE_VOTE_VERSION = 2


class Asking:
    """Carries questions to other voters, and their answers to `step`."""

    def __init__(
        self,
        network: Network,
        addresses: Addresses,
        identity: Identity,
        voters: Voters,
        timeout_ms: int,
        step: Callable[[raft.Event], Any],
        fail: Callable[[str], None],
    ) -> None:
        self._network = network
        self._addresses = addresses
        self._identity = identity
        self._voters = voters
        self._timeout_s = timeout_ms / 1000
        self._step = step
        self._fail = fail
        self._peers: dict[int, Peer] = {}
        self._under_way: dict[int, tuple[Question, asyncio.Task[None]]] = {}
        self._twin_known_to: int | None = None
        """A voter who said last that the leader has this node's id, while this node asks for votes."""

    def ask(self, question: Question) -> None:
        """Send a question, unless the same one waits for its answer."""
        earlier = self._under_way.get(question.to)
        if earlier is not None:
            if earlier[0] == question:
                return
            earlier[1].cancel()
        task = begin(self._carry(question), "asking a voter", self._fail)
        self._under_way[question.to] = question, task

    @property
    def why_in_vain(self) -> str | None:
        """Why no leader can be elected, by the answers so far."""
        me = self._identity.node_id
        if self._twin_known_to is not None:
            return f"voter {self._twin_known_to} says that node {me} leads: is another node running with this node.id?"
        everybody = self._everybody
        silent = [shown for shown, address in everybody.items() if address and self._addresses.is_silent(address)]
        if not silent:
            return None
        of_all = f"{len(silent)} of {len(everybody)} controllers"
        return f"{of_all} {'is' if len(silent) == 1 else 'are'} out of reach: {', '.join(silent)}"

    @property
    def lacks_majority(self) -> bool:
        """Whether too few voters answered the last request to elect a leader."""
        everybody = self._everybody
        silent = sum(address is not None and self._addresses.is_silent(address) for address in everybody.values())
        return 2 * (len(everybody) - silent) <= len(everybody)

    @property
    def _everybody(self) -> dict[str, Address | None]:
        """The voters, shown for people; while the log has not said who votes, the addresses that may know them."""
        if not self._voters.ids:
            own = self._identity.listener
            others = [each for each in self._addresses.everybody() if own is None or each != own[1:]]
            return {f"{address.host}:{address.port}": address for address in others}
        known = {voter: self._addresses.of(voter) for voter in self._voters.ids}
        return {f"{voter} at {at.host}:{at.port}" if at else f"{voter}": at for voter, at in known.items()}

    async def finish(self) -> None:
        """Until what is under way is answered or given up."""
        await asyncio.gather(*(task for _, task in self._under_way.values()), return_exceptions=True)

    async def close(self) -> None:
        """Give up what is under way, and close the connections."""
        tasks = [task for _, task in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            peer.close()

    async def _carry(self, question: Question) -> None:
        event: raft.Event | None = None
        address = self._addresses.of(question.to)
        try:
            if address is not None:
                async with asyncio.timeout(self._timeout_s):
                    event = await self._exchange(question, address)
                self._addresses.answered(address)
        except LOST as reason:
            log.debug("%s was not answered: %s", question, reason)
            assert address is not None
            self._addresses.unanswered(address)
            peer = self._peers.pop(question.to, None)
            if peer is not None:
                peer.close()
        finally:
            if self._under_way.get(question.to, (None,))[0] is question:
                del self._under_way[question.to]
        if event is not None:
            self._step(event)

    async def _exchange(self, question: Question, address: Address) -> raft.Event | None:
        peer = self._peers.get(question.to)
        if peer is None or not peer.is_open:
            peer = await Peer.dial(self._network, *address, client_id=self._identity.client_id)
            self._peers[question.to] = peer
            await peer.negotiate()
        match question:
            case raft.AskVote():
                return await self._vote(peer, question)
            case raft.AskBegin():
                told = await peer.ask("BeginQuorumEpoch", self._identity.begin(question, self._voters.set))
            case raft.AskEnd():
                told = await peer.ask("EndQuorumEpoch", self._identity.end(question, self._voters.set))
        self._addresses.learn((node.node_id, node.host, node.port) for node in told.node_endpoints)
        answer = _partition(told)
        return None if answer is None else raft.LeaderTold(answer.leader_epoch, answer.leader_id)

    async def _vote(self, peer: Peer, question: raft.AskVote) -> raft.Event | None:
        """A voter before KIP-996 knows no pre-vote: it is taken to agree, as Kafka does."""
        if question.is_pre_vote and peer.best_version(VOTE) < PRE_VOTE_VERSION:
            return raft.VoteTold(question.to, question.epoch, raft.NOBODY, True, True)
        told = await peer.ask("Vote", self._identity.vote(question, self._voters.set))
        self._addresses.learn((node.node_id, node.host, node.port) for node in told.node_endpoints)
        answer = _partition(told)
        if answer is None:
            return None
        self._twin_known_to = question.to if answer.leader_id == self._identity.node_id else None
        return raft.VoteTold(
            question.to, answer.leader_epoch, answer.leader_id, answer.vote_granted, question.is_pre_vote
        )


def _partition(told: Any) -> Any:
    """The answer about the one partition; None where the request as a whole was refused."""
    if told.error_code:
        log.warning("a voter refuses this node with error code %d", told.error_code)
        return None
    return next((partition for topic in told.topics for partition in topic.partitions), None)
