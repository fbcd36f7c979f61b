"""Settings from environment variables, as the image apache/kafka reads them (KIP-975).

`KAFKA_` and the name in capitals, with `_` for `.`, `__` for `_` and `___` for `-`; CLUSTER_ID is the cluster's id.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from kpybroker.cli.properties import read_properties
from kpybroker.config import parse_properties

log = logging.getLogger(__name__)

PREFIX, OWN = "KAFKA_", "kpybroker."
CLUSTER_ID = "CLUSTER_ID"
MOUNTED = Path("/mnt/shared/config/server.properties")
"""Where that image looks for a file; variables win over it."""
DATA = "/var/lib/kafka/data"
"""The volume of that image, and the directory of this one where none is named."""
NO_SETTINGS = frozenset(
    {
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
    }
)
"""Variables that speak to the JVM, its logging and the scripts around it; there is no JVM here."""
SERVICE_LINK = re.compile(r"KAFKA_(SERVICE|PORT)(_[A-Z0-9_]+)?")
"""What Kubernetes tells every pod about a service that is named `kafka`."""
UNCONFIGURED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://localhost:9092",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""What that image does where it is told nothing."""


def setting_name(variable: str) -> str:
    """`KAFKA_A_B__C___D` is `a.b_c-d`."""
    name = variable.removeprefix(PREFIX).lower().replace("_", ".")
    return name.replace("...", "-").replace("..", "_")


def read_environment(environment: Mapping[str, str], file: Path | None = None) -> dict[str, str]:
    """Settings by name: variables over `file`, or over the one that is mounted where that image has it.

    Without either the node is one for clients on this host. Raises ConfigError: a file or a value that cannot be read.
    """
    told = [name for name in environment if name.startswith(PREFIX) and not SERVICE_LINK.fullmatch(name)]
    without_use = sorted(name for name in told if name in NO_SETTINGS)
    if without_use:
        log.warning("%s: there is no JVM here; it is passed over", ", ".join(without_use))
    # through a property file's text, so that backslashes mean what they do there
    lines = [f"{setting_name(name)}={environment[name]}" for name in told if name not in NO_SETTINGS]
    settings = parse_properties("\n".join(lines), "the environment")
    if settings.get("advertised.listeners") == "":
        del settings["advertised.listeners"]
    if file is None and MOUNTED.exists():
        file = MOUNTED
    if file is not None:
        settings = {**read_properties(file), **settings}
    elif all(name.startswith(OWN) or name in ("log.dir", "log.dirs") for name in settings):
        settings = {**UNCONFIGURED, **settings}
    if environment.get(CLUSTER_ID):
        settings["kpybroker.cluster.id"] = environment[CLUSTER_ID]
    if "log.dir" not in settings:
        settings.setdefault("log.dirs", DATA)
    _listen_on_all(settings)
    return settings


def _listen_on_all(settings: dict[str, str]) -> None:
    """Without `listeners` a broker listens where it is said to be, on all addresses of the container."""
    advertised = settings.get("advertised.listeners")
    if advertised and not settings.get("listeners") and "broker" in settings.get("process.roles", "broker"):
        settings["listeners"] = ",".join(
            f"{name}://0.0.0.0:{place.rpartition(':')[2]}"
            for name, _, place in (one.strip().partition("://") for one in advertised.split(","))
        )
