"""Runs kpybroker and Apache Kafka in turn on the same data directory, or on the data directories of a cluster.

    with Home() as home:
        home.start("kpybroker")
        home.stop()
        home.start("kafka")

`kpybroker dev --data-dir` creates a `Home` of one node; `kpybroker serve` with static voters creates a larger one. Node
ids, ports and directories stay the same.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from oracle.broker import KPyBroker
from oracle.cluster import Cluster
from oracle.kafka import Kafka
from oracle.target import steady_port

KPYBROKER, KAFKA = "kpybroker", "kafka"
EXIT_CODES = {KPYBROKER: 0, KAFKA: 143}
ALIKE = {
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "metadata.log.max.record.bytes.between.snapshots": "20000",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.max.session.timeout.ms": "600000",
}
"""Settings for both brokers: short waits for tests, frequent metadata snapshots, and long sessions allowed."""
CLEANED = "cleaner-offset-checkpoint"
QUICK_JVM = ("-XX:TieredStopAtLevel=1",)


class Home:
    """The data directories of `nodes` nodes, used by one kind of broker at a time. `how`: how brokers are stopped,
    "stop" or "kill9"."""

    def __init__(
        self,
        nodes: int = 1,
        *,
        how: str = "stop",
        properties: Mapping[str, str] | None = None,
        more_log_dirs: tuple[str, ...] = (),
    ) -> None:
        """`more_log_dirs`: names of further log directories of a single node, besides `data`."""
        self._how = how
        self.directory = Path(tempfile.mkdtemp(prefix="takeover-"))
        self.node_count = nodes
        self._settings = {**ALIKE, **(properties or {})}
        self._log_dirs = [self.directory / name for name in ("data", *more_log_dirs)]
        if more_log_dirs:
            self._settings["log.dirs"] = ",".join(map(str, self._log_dirs))
        self._port = steady_port()
        self._running: KPyBroker | Kafka | Cluster | None = None
        self.cluster: Cluster | None = None
        """The cluster, if there are several nodes."""
        if nodes > 1:
            self.cluster = Cluster(
                KPYBROKER,
                brokers=nodes,
                directory=self.directory,
                properties=self._settings,
                jvm=QUICK_JVM,
            )

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}" if self.cluster is None else self.cluster.bootstrap

    @property
    def address(self) -> tuple[str, int]:
        """The address of one node."""
        return ("127.0.0.1", self._port) if self.cluster is None else self.cluster.brokers[0].address

    @property
    def data(self) -> list[Path]:
        """The data directories of each node."""
        if self.cluster is None:
            return self._log_dirs
        return [node.data for node in self.cluster.nodes.values()]

    def start(self, kind: str, more: Mapping[str, str] | None = None) -> None:
        """Start this kind of broker, and wait until each node responds. `more`: additional settings of a single node.

        Raises NotStarted.
        """
        assert self._running is None, "one at a time"
        settings = {**self._settings, **(more or {})}
        if self.cluster is not None:
            self.cluster.become(kind)
            self._running = self.cluster.start()
        elif kind == KAFKA:
            self._running = Kafka(self.directory, settings, port=self._port, jvm=QUICK_JVM).start()
        else:
            self._running = KPyBroker(self.directory, settings, port=self._port).start()

    def stop(self) -> None:
        """Send SIGTERM to every node. Raises AssertionError if one did not stop cleanly."""
        running, self._running = self._running, None
        if isinstance(running, Cluster):
            codes, name = running.stop(), running.kind
        else:
            assert running is not None, "not started"
            codes, name = [running.stop()], running.name
        assert set(codes) == {EXIT_CODES[name]}, f"{name} ended with {codes}"

    def kill9(self) -> None:
        """Send SIGKILL to every node."""
        running, self._running = self._running, None
        if running is not None:
            running.kill9()

    def end(self) -> None:
        """Stop the brokers in the way that `how` names."""
        (self.kill9 if self._how == "kill9" else self.stop)()

    def has_cleaned(self, topic: str, partition: int) -> bool:
        """Whether any node has compacted this partition at least once."""
        row = f"\n{topic} {partition} "
        files = (data / CLEANED for data in self.data)
        return any(row in file.read_text() for file in files if file.exists())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the directory after a failure."""
        self.kill9()
        if error is None:
            shutil.rmtree(self.directory, ignore_errors=True)
