"""Starts the two brokers for a benchmark in the same way as the package oracle, and records the time of exec."""

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
PREFAULTED = ("-XX:+AlwaysPreTouch",)
"""The whole heap is touched at the start, or slices would pay for the first use of its pages."""
NAMES = ("kpybroker", "kafka")
ON_DISK = {
    "kpybroker": {"kpybroker.fsync": "always"},
    "kafka": {"log.flush.interval.messages": "1"},
}


class TimedKafka(Kafka):
    """Records the time just before its process is started."""

    exec_at = 0.0

    def command(self) -> list[str]:
        command = super().command()
        self.exec_at = time.perf_counter()
        return command


class TimedKPyBroker(KPyBroker):
    """Records the time just before its process is started."""

    exec_at = 0.0

    def command(self) -> list[str]:
        command = super().command()
        self.exec_at = time.perf_counter()
        return command


def broker(
    name: str, properties: dict[str, str], directory: Path | None = None, *, jvm: tuple[str, ...] = ()
) -> TimedKafka | TimedKPyBroker:
    """A broker that is not started yet, with its port chosen. `jvm`: options for Kafka's JVM."""
    if name == "kafka":
        return TimedKafka(directory, properties, heap=HEAP, jvm=jvm)
    return TimedKPyBroker(directory, properties, port=steady_port())


def cluster(name: str) -> Cluster:
    """A cluster of three nodes that are not started yet, with three replicas and min.insync.replicas=2."""
    return Cluster(name, heap=HEAP)


def target_of(nodes: Cluster) -> ClusterTarget:
    """The target for a started cluster."""
    return ClusterTarget(nodes.kind, nodes.bootstrap, 0, replicas=3, cluster=nodes)


@contextmanager
def started(names: list[str], kind: Brokers) -> Iterator[list[Target]]:
    """Run all of these brokers; stop them and delete their data at the end."""
    with contextlib.ExitStack() as stack:
        targets: list[Target] = []
        if kind is Brokers.CLUSTER:
            targets += [target_of(stack.enter_context(cluster(name))) for name in names]
            names = []
        for name in names:
            settings = dict(ON_DISK[name]) if kind is Brokers.FSYNC else {}
            http = ""
            if name == "kpybroker":
                http = f"127.0.0.1:{steady_port()}"
                settings["kpybroker.http.port"] = http.rpartition(":")[2]
            server: ServerProcess = broker(name, settings, jvm=PREFAULTED)
            stack.enter_context(server)
            targets.append(Target(name, server.bootstrap, server.pid, http=http))
        stack.callback(control.forget)
        yield targets
