"""A model of the controller, which decides on one partition as the real controller does."""

from __future__ import annotations

from typing import NamedTuple

from kpybroker.errors import ErrorCode
from kpybroker.metadata.image import PartitionImage

NODES = (1, 2, 3)


class Controller:
    """The decisions of the controller in order. Every node applies them one after another."""

    def __init__(self) -> None:
        self.images = [PartitionImage(1, 0, 0, NODES, NODES)]
        self.epochs = dict.fromkeys(NODES, 1)
        self.live = dict.fromkeys(NODES, True)

    @property
    def now(self) -> PartitionImage:
        return self.images[-1]

    def decide(self, leader: int, isr: tuple[int, ...], *, reign: bool) -> None:
        now = self.now
        epoch = now.leader_epoch + reign
        self.images.append(PartitionImage(leader, epoch, now.partition_epoch + 1, NODES, isr))

    def may_join(self, node_id: int, broker_epoch: int) -> bool:
        return self.live[node_id] and self.epochs[node_id] == broker_epoch

    def gone(self, node_id: int) -> None:
        """Fence a node: it leaves the ISR, unless it is the last member, and no longer leads."""
        self.live[node_id] = False
        isr = tuple(member for member in self.now.isr if member != node_id) or self.now.isr
        leads = self.now.leader == node_id
        able = [member for member in isr if self.live[member]]
        leader = (able[0] if able else -1) if leads else self.now.leader
        if isr != self.now.isr or leads:
            self.decide(leader, isr, reign=leads)

    def back(self, node_id: int) -> None:
        self.live[node_id] = True
        self.epochs[node_id] += 1
        if self.now.leader == -1 and node_id in self.now.isr:
            self.decide(node_id, self.now.isr, reign=True)

    def propose(self, proposal: Proposal) -> ErrorCode:
        now = self.now
        if proposal.leader_epoch != now.leader_epoch or now.leader != proposal.node_id:
            return ErrorCode.FENCED_LEADER_EPOCH
        if proposal.partition_epoch != now.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if not all(self.may_join(member, epoch) for member, epoch in proposal.isr):
            return ErrorCode.INELIGIBLE_REPLICA
        self.decide(now.leader, tuple(member for member, _ in proposal.isr), reign=False)
        return ErrorCode.NONE


class Proposal(NamedTuple):
    node_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
