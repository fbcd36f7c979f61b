"""Runs kpybroker with the same interface as Apache Kafka: `python -m kpybroker serve` in a child process.

It does not use `dev`, whose defaults for laptops differ from Apache Kafka's.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from oracle.target import ServerProcess, read_json, steady_port
from oracle.tools import Ran, tool

SMALL = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.replication.factor": "1"}


class KPyBroker(ServerProcess):
    """A kpybroker node on `directory / "data"`; `properties` become `--set name=value`."""

    name = "kpybroker"
    start_timeout_s = 60.0

    def __init__(
        self, directory: Path | None = None, properties: Mapping[str, str] | None = None, *, port: int = 0
    ) -> None:
        super().__init__(directory, properties, port or steady_port())

    @property
    def ready_file(self) -> Path:
        return self.directory / "ready.json"

    def command(self) -> list[str]:
        self.ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "kpybroker", "serve", "--ready-file", str(self.ready_file)]
        own = {"listeners": f"PLAINTEXT://127.0.0.1:{self.port}", "log.dirs": str(self.data)}
        for name, value in {**SMALL, **own, **self.properties}.items():
            command += ["--set", f"{name}={value}"]
        return command

    def ready(self) -> bool:
        told = read_json(self.ready_file)
        if told is None:
            return False
        self.port = int(str(told["bootstrap"]).rpartition(":")[2])
        return super().ready()

    def tool(self, name: str, *args: str, stdin: str = "") -> Ran:
        """Run one of Kafka's tools against this node."""
        return tool(name, *args, bootstrap=self.bootstrap, stdin=stdin)
