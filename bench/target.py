"""A broker under load: its address, and the CPU and memory of its process."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oracle.cluster import Cluster

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds of one process."""

    user_s: float
    system_s: float

    @property
    def total_s(self) -> float:
        return self.user_s + self.system_s

    def __sub__(self, earlier: "Cpu") -> "Cpu":
        return Cpu(self.user_s - earlier.user_s, self.system_s - earlier.system_s)


@dataclass(frozen=True, slots=True)
class Target:
    """A started broker. `name` is "kpybroker" or "kafka"; `bootstrap` is host:port. New topics have `replicas`."""

    name: str
    bootstrap: str
    pid: int
    replicas: int = 1

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)

    def cpu(self) -> Cpu:
        """User and system time of all threads, including ended ones. The kernel's resolution is 10 ms."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return Cpu(int(fields[11]) / _TICKS_PER_S, int(fields[12]) / _TICKS_PER_S)

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.pid}/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        raise RuntimeError(f"process {self.pid} has no VmRSS")

    def leading(self, topic: str) -> "Target":
        """The leader of partition 0 of this topic."""
        return self


@dataclass(frozen=True, slots=True)
class ClusterTarget(Target):
    """Several started brokers. Their cost is the sum over all of them."""

    cluster: "Cluster | None" = None

    @property
    def nodes(self) -> "Cluster":
        assert self.cluster is not None
        return self.cluster

    def cpu(self) -> Cpu:
        each = [Target.cpu(Target(self.name, "", node.pid)) for node in self.nodes.nodes.values()]
        return Cpu(sum(one.user_s for one in each), sum(one.system_s for one in each))

    def resident_bytes(self) -> int:
        return sum(Target(self.name, "", node.pid).resident_bytes() for node in self.nodes.nodes.values())

    def leading(self, topic: str) -> Target:
        node = self.nodes.nodes[self.nodes.leader_of(topic, 0)]
        host, port = node.address
        return Target(self.name, f"{host}:{port}", node.pid)
