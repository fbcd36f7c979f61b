"""The two brokers, started for a benchmark; the oracle's way of running them, with a clock at exec."""

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import control
from bench.measure import Brokers
from bench.target import ClusterTarget, Target
from oracle.broker import KPyBroker
from oracle.cluster import Cluster
from oracle.kafka import Kafka
from oracle.target import ServerProcess, steady_port

HEAP = "1g"
NAMES = ("kpybroker", "kafka")
ON_DISK = {
    "kpybroker": {"kpybroker.fsync": "always"},
    "kafka": {"log.flush.interval.messages": "1"},
}


class TimedKafka(Kafka):
    """Notes when its process was about to be started."""

    exec_at = 0.0

    def command(self) -> list[str]:
        command = super().command()
        self.exec_at = time.perf_counter()
        return command


class TimedKPyBroker(KPyBroker):
    """Notes when its process was about to be started."""

    exec_at = 0.0

    def command(self) -> list[str]:
        command = super().command()
        self.exec_at = time.perf_counter()
        return command


def broker(name: str, properties: dict[str, str], directory: Path | None = None) -> TimedKafka | TimedKPyBroker:
    """One that is not started yet, with its port chosen."""
    if name == "kafka":
        return TimedKafka(directory, properties, heap=HEAP)
    return TimedKPyBroker(directory, properties, port=steady_port())


def cluster(name: str) -> Cluster:
    """Three nodes that are not started yet: a topic has three replicas, and two must have a record."""
    return Cluster(name, heap=HEAP)


def target_of(nodes: Cluster) -> ClusterTarget:
    """A started cluster as a target."""
    return ClusterTarget(nodes.kind, nodes.bootstrap, 0, replicas=3, cluster=nodes)


@contextmanager
def started(names: list[str], kind: Brokers) -> Iterator[list[Target]]:
    """All of these brokers, running; at the end stopped, and their data gone."""
    with contextlib.ExitStack() as stack:
        targets: list[Target] = []
        if kind is Brokers.CLUSTER:
            targets += [target_of(stack.enter_context(cluster(name))) for name in names]
            names = []
        for name in names:
            server: ServerProcess = broker(name, ON_DISK[name] if kind is Brokers.FSYNC else {})
            stack.enter_context(server)
            targets.append(Target(name, server.bootstrap, server.pid))
        stack.callback(control.forget)
        yield targets
