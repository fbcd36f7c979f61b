"""Keeps the addresses of the quorum's controllers, from settings and from other nodes, and records which ones
respond."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kpybroker.config import BrokerConfig
from kpybroker.raft.core.voter_set import Voter

KNOWN_MAX = 1000


class Address(NamedTuple):
    """A controller listener."""

    host: str
    port: int


class ControllerNode(NamedTuple):
    """The active controller, and its controller listener."""

    node_id: int
    host: str
    port: int


class Addresses:
    """The node ids and addresses of the quorum's controllers. An address is silent after a request without a
    response."""

    def __init__(self, config: BrokerConfig) -> None:
        self._known = {voter.node_id: Address(voter.host, voter.port) for voter in config.controller_quorum_voters}
        self._bootstrap = [Address(*server) for server in config.controller_quorum_bootstrap_servers]
        self._names = config.controller_listener_names
        self._next = 0
        self._silent: set[Address] = set()

    def of(self, node_id: int) -> Address | None:
        """The address of a node; None if it is not known."""
        return self._known.get(node_id)

    def learn(self, addresses: Iterable[tuple[int, str, int]]) -> None:
        """Remember addresses, given as (node id, host, port)."""
        for node_id, host, port in addresses:
            if node_id >= 0 and host and port and (node_id in self._known or len(self._known) < KNOWN_MAX):
                address = Address(host, port)
                if self._known.get(node_id) != address:
                    self._silent.discard(self._known.get(node_id, address))
                    self._known[node_id] = address

    def learn_voters(self, voters: Iterable[Voter]) -> None:
        """Remember the addresses of voters, which come from the log."""
        for voter in voters:
            found = voter.listens(self._names)
            if found is not None:
                self.learn([(voter.node_id, *found)])

    def anybody(self) -> Address | None:
        """The address of a node that may know the leader; each call returns the next address."""
        candidates = self.everybody()
        if not candidates:
            return None
        self._next += 1
        return candidates[self._next % len(candidates)]

    def everybody(self) -> list[Address]:
        """All known addresses, from settings and from other nodes."""
        return [*self._known.values(), *self._bootstrap]

    def answered(self, address: Address) -> None:
        """Record that a node responded at this address, perhaps with an error."""
        self._silent.discard(address)

    def unanswered(self, address: Address) -> None:
        """Record that a request to this address got no response."""
        self._silent.add(address)

    def all_may_answer(self) -> None:
        """Forget earlier failures, because a leader has been found."""
        self._silent.clear()

    def is_silent(self, address: Address) -> bool:
        """Whether the last request to this address got no response."""
        return address in self._silent
