"""A broker under load: its address, and the CPU and memory of its process."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oracle.cluster import Cluster


def _cpu_clock(pid: int) -> int:
    """The clock of the CPU time of a whole process, as clock_getcpuclockid(3) returns it."""
    return (~pid << 3) | 2


class Cost(float):
    """CPU of a broker per unit of work. `user` and `system` add up to it."""

    def __new__(cls, user: float, system: float) -> "Cost":
        made = super().__new__(cls, user + system)
        made.user, made.system = user, system
        return made

    user: float
    system: float


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds of one process. The sum is exact. The kernel counts user and system time in ticks of 10 ms, so their
    shares are exact only if the time is long."""

    total_s: float
    user_ticks: int
    system_ticks: int

    @property
    def user_s(self) -> float:
        ticks = self.user_ticks + self.system_ticks
        return self.total_s * self.user_ticks / ticks if ticks else self.total_s

    def per(self, count: float) -> Cost:
        """The cost of one of `count` units, in seconds."""
        return Cost(self.user_s / count, (self.total_s - self.user_s) / count)

    def __add__(self, other: "Cpu") -> "Cpu":
        return Cpu(
            self.total_s + other.total_s, self.user_ticks + other.user_ticks, self.system_ticks + other.system_ticks
        )

    def __sub__(self, earlier: "Cpu") -> "Cpu":
        return Cpu(
            self.total_s - earlier.total_s,
            self.user_ticks - earlier.user_ticks,
            self.system_ticks - earlier.system_ticks,
        )


@dataclass(frozen=True, slots=True)
class Target:
    """A started broker. `name` is "kpybroker" or "kafka". `bootstrap` and `http` are host:port; Kafka has no `http`.
    New topics have `replicas`."""

    name: str
    bootstrap: str
    pid: int
    replicas: int = 1
    http: str = ""

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.bootstrap.rpartition(":")
        return host, int(port)

    def cpu(self) -> Cpu:
        """User and system time of all threads, including ended ones."""
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return Cpu(time.clock_gettime(_cpu_clock(self.pid)), int(fields[11]), int(fields[12]))

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.pid}/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        raise RuntimeError(f"process {self.pid} has no VmRSS")

    def leading(self, topic: str) -> "Target":
        """The leader of partition 0 of this topic."""
        return self

    def placed(self, partitions: int) -> dict[str, Any]:
        """The arguments of NewTopic that place the replicas of a new topic."""
        return {"replication_factor": self.replicas}


@dataclass(frozen=True, slots=True)
class ClusterTarget(Target):
    """Several started brokers. Their cost is the sum over all of them. Each partition of a new topic has its replicas
    on `brokers`, and the first of them leads it; if empty, the cluster places them."""

    cluster: "Cluster | None" = None
    brokers: tuple[int, ...] = ()

    @property
    def nodes(self) -> "Cluster":
        assert self.cluster is not None
        return self.cluster

    def cpu(self) -> Cpu:
        each = [Target.cpu(Target(self.name, "", node.pid)) for node in self.nodes.nodes.values()]
        return sum(each, Cpu(0.0, 0, 0))

    def resident_bytes(self) -> int:
        return sum(Target(self.name, "", node.pid).resident_bytes() for node in self.nodes.nodes.values())

    def placed(self, partitions: int) -> dict[str, Any]:
        if self.brokers:
            return {"replica_assignment": [list(self.brokers)] * partitions}
        return Target.placed(self, partitions)  # super() does not know a class with slots that was made anew

    def leading(self, topic: str) -> Target:
        node = self.nodes.nodes[self.nodes.leader_of(topic, 0)]
        host, port = node.address
        return Target(self.name, f"{host}:{port}", node.pid)
