"""Runs Apache Kafka 4.3.1 as one node in KRaft's combined mode."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from oracle.jars import MissingPrerequisite, jars, java
from oracle.target import NotStarted, ServerProcess, steady_port
from oracle.tools import Ran, tool

__all__ = ["CLUSTER_ID", "Kafka", "MissingPrerequisite", "Ran", "jars", "java", "tool"]

CLUSTER_ID = "a3B5YnJva2VyLW9yYWNsZQ"
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a Java process that starts quickly and uses little CPU; it is not for measurements."""
LOGGING = Path(__file__).resolve().parent / "log4j2.properties"
SMALL = {
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


class Kafka(ServerProcess):
    """A Kafka node, formatted at its first start. `properties` override the defaults for a laptop. `heap` is, for
    example, "512m"."""

    name = "kafka"
    format_options: tuple[str, ...] = ("--standalone",)

    def __init__(
        self,
        directory: Path | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        heap: str = "512m",
        port: int = 0,
        jvm: tuple[str, ...] = (),
    ) -> None:
        super().__init__(directory, properties, port or steady_port())
        self.heap = heap
        self.jvm = jvm
        self.controller_port = steady_port()

    @property
    def properties_file(self) -> Path:
        return self.directory / "server.properties"

    def command(self) -> list[str]:
        flags = [f"-Xmx{self.heap}", f"-Xms{self.heap}", "-Xshare:auto", f"-Dlog4j2.configurationFile={LOGGING}"]
        return [java(), *flags, *self.jvm, "-cp", f"{jars()}/*", "kafka.Kafka", str(self.properties_file)]

    def start(self) -> "Kafka":
        self._write_properties()
        if not (self.data / "meta.properties").exists():
            self._format()
        return super().start()

    def _write_properties(self) -> None:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data),
            **SMALL,
            **self.properties,
        }
        self.properties_file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _format(self) -> None:
        quick = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-Xshare:auto", f"-Dlog4j2.configurationFile={LOGGING}"]
        what = ["format", *self.format_options, "-t", CLUSTER_ID, "-c", str(self.properties_file)]
        command = [java(), *quick, "-cp", f"{jars()}/*", "kafka.tools.StorageTool", *what]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise NotStarted(f"kafka-storage format failed:\n{run.stdout}{run.stderr}")

    def tool(self, name: str, *args: str, stdin: str = "") -> Ran:
        """Run one of Kafka's tools against this node: `kafka.tool("kafka-topics", "--list")`."""
        return tool(name, *args, bootstrap=self.bootstrap, stdin=stdin)
