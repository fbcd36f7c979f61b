"""The brokers of a test cluster that are cut off from each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kpybroker.testing.node import ClusterNode

Pair = tuple[int, int]
"""The ids of two brokers."""


class Cuts:
    """The cuts that last: they follow the starts and pauses of the nodes."""

    def __init__(self, nodes: Mapping[int, ClusterNode], ports: Mapping[int, Sequence[int]]) -> None:
        """`nodes` and `ports`: the nodes of the cluster and the ports of their listeners, by id."""
        self._nodes = nodes
        self._ports = ports
        self._lasting: list[set[Pair]] = []
        """By `with` block."""

    def begin(self, pairs: set[Pair]) -> None:
        """Cut these pairs of brokers off from each other, until `end`."""
        self._lasting.append(pairs)
        self._tell(self._nodes.values())

    def end(self, pairs: set[Pair]) -> None:
        """End a cut. A paused broker is told when it continues."""
        self._lasting.remove(pairs)
        self._tell(self._nodes.values())

    def count(self, node: int) -> int:
        """From how many brokers this one is cut off."""
        return len(self._cut_off_from(node))

    def _cut_off_from(self, node: int) -> set[int]:
        return {each for pairs in self._lasting for pair in pairs if node in pair for each in pair} - {node}

    def before_end(self, nodes: Sequence[ClusterNode]) -> None:
        """Does nothing, because the nodes know no more about cuts than this."""

    def after_start(self, node: ClusterNode) -> None:
        """Tell a node that has been started what it cannot reach."""
        if self._lasting:
            self._tell([node])

    def after_resume(self, node: ClusterNode) -> None:
        """Tell a node that was paused what it cannot reach by now."""
        self._tell([node])

    def _tell(self, nodes: Iterable[ClusterNode]) -> None:
        """Tell nodes the ports that they cannot reach."""
        for node in nodes:
            if node.takes_commands:
                others = sorted(self._cut_off_from(node.node_id))
                node.command({"do": "cut", "ports": [port for other in others for port in self._ports[other]]})
