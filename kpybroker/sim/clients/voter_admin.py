"""A client that removes voters of the quorum and adds them again, and the invariants of voters (KIP-853)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from kpybroker.errors import ErrorCode
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.cluster.setup import CONTROLLER_PORT, directory_of
from kpybroker.wire.rpc import add_raft_voter, remove_raft_voter

if TYPE_CHECKING:
    from kpybroker.raft.quorum import Quorum
    from kpybroker.sim.cluster.cluster import SimMachine
    from kpybroker.sim.world.history import History

CHANGE_LIMIT_S = 10.0
FEWEST = 2
"""The smallest number of voters. With one voter, no data would be lost either, but any fault of that node would stop
the quorum."""
UNDECIDED = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_CONTROLLER)
"""Errors after which the change may still happen or may already have happened."""
CHANGED_ALREADY = (ErrorCode.DUPLICATE_VOTER, ErrorCode.VOTER_NOT_FOUND)


class VoterAdmin:
    """Adds and removes one voter at a time, and tracks which nodes must be voters."""

    def __init__(self, client: SimClient, addresses: dict[int, str], *, pace_s: float) -> None:
        self._client = client
        self._addresses = addresses
        self._pace_s = pace_s
        self._votes = dict.fromkeys(addresses, True)
        """Whether each node is a voter according to the responses so far, by node id."""
        self._doubtful: dict[int, None] = {}
        """Nodes with a request that has no response, which may take effect at any time."""

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            await client.nap(2 * self._pace_s)
            out = [node_id for node_id, votes in self._votes.items() if not votes]
            may_remove = len(self._votes) - len(out) > FEWEST
            adds = bool(out) and (not may_remove or client.random.random() < 0.7)
            node_id = client.random.choice(out if adds else [each for each in self._votes if each not in out])
            if not adds and not may_remove:
                continue
            try:
                await self._change(node_id, adds)
                self._votes[node_id] = adds
                client.note(f"{'added' if adds else 'removed'} voter {node_id}")
                client.history.count("voter added" if adds else "voter removed")
                client.succeeded()
            except Refused as refused:
                if refused.code in CHANGED_ALREADY:
                    # an earlier request whose response was lost made the change, or the response is from a former
                    # leader
                    self._votes[node_id] = adds
                    self._doubtful[node_id] = None
                    client.succeeded()
                elif refused.code in UNDECIDED:
                    self._doubtful[node_id] = None
                client.note(f"does not know the state of voter {node_id}: {refused}")
            except Unanswered as failed:
                self._doubtful[node_id] = None
                client.note(f"does not know the state of voter {node_id}: {failed}")

    async def _change(self, node_id: int, adds: bool) -> None:
        client = self._client
        directory = directory_of(node_id)
        listener = add_raft_voter.Listener(name="CONTROLLER", host=self._addresses[node_id], port=CONTROLLER_PORT)
        request = (
            add_raft_voter.Request(
                cluster_id=None, voter_id=node_id, voter_directory_id=directory, listeners=[listener]
            )
            if adds
            else remove_raft_voter.Request(cluster_id=None, voter_id=node_id, voter_directory_id=directory)
        )
        name = "AddRaftVoter" if adds else "RemoveRaftVoter"
        response = await client.ask(client.any_broker(), name, request, limit_s=CHANGE_LIMIT_S)
        if response.error_code:
            raise Refused(response.error_code)

    def check(self, machines: list[SimMachine], history: History) -> None:
        """Check at the end that the leader's voters are those that the responses imply."""
        for machine in machines:
            if machine.node is not None and machine.node.broker.quorum.is_active:
                found = machine.node.broker.quorum.voters.ids
                for node_id, votes in self._votes.items():
                    if node_id not in self._doubtful and votes != (node_id in found):
                        history.breach(f"{node_id} was {'added' if votes else 'removed'}, but the voters are {found}")


class VoterChecks:
    """Checks the voters in every node's log against those committed on other nodes and against KIP-853."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._committed: dict[int, tuple[str, tuple[int, ...]]] = {}

    def look(self, name: str, quorum: Quorum) -> None:
        """Check that the voters committed at an offset are the same on all nodes, and that only one change is pending
        at a time."""
        voter_sets = quorum.voter_history
        open_changes = 0
        for before, after in itertools.pairwise(voter_sets):
            if after.end > quorum.state.high_watermark:
                open_changes += 1
            else:
                known, voters = self._committed.setdefault(after.end, (name, after.voters.ids))
                here = after.voters.ids
                if voters != here:
                    self._history.breach(f"voters up to offset {after.end}: {voters} for {known}, {here} for {name}")
            if before.end and len({*before.voters.ids} ^ {*after.voters.ids}) > 1:
                self._history.breach(f"{name}: voters {before.voters.ids} became {after.voters.ids} in one change")
        if quorum.is_leader and open_changes > 1:
            self._history.breach(f"{name} leads with {open_changes} uncommitted changes of voters")
