"""Reads the state of one share group in the memory of the nodes: share partitions of leaders, and members' sessions.

A reign is one SharePartition in the memory of one process: its counts and locks begin when it is loaded. The object
is never used again after the reign has ended. If it is the same before and after a request, the request was served in
this reign.
"""

from __future__ import annotations

from collections.abc import Iterable

from kpybroker.shares.keys import ShareKey
from kpybroker.shares.leader import LedSharePartition
from kpybroker.shares.sessions import SessionKey, ShareSession
from kpybroker.sim.cluster.cluster import SimMachine


class ShareSight:
    """Reads the memory of the processes that are running."""

    def __init__(self, machines: Iterable[SimMachine], group: str) -> None:
        self.machines = {machine.setup.node_id: machine for machine in machines}
        self._group = group

    def reign(self, node_id: int, topic_id: bytes, index: int) -> LedSharePartition | None:
        """The group's share partition on a node; None if the node has none in use."""
        node = self.machines[node_id].node
        found = (
            None if node is None else node.broker.coordinators.share_leader.find(ShareKey(self._group, topic_id, index))
        )
        return None if found is None or found.share is None else found

    def session(self, node_id: int, member_id: str) -> ShareSession | None:
        """The member's session on a node."""
        node = self.machines[node_id].node
        if node is None:
            return None
        return node.broker.coordinators.share_leader.sessions.find(SessionKey(self._group, member_id))
