"""Reads settings from environment variables in the same way as the image apache/kafka (KIP-975).

The name of a variable is `KAFKA_` followed by the setting's name in capitals, with `_` for `.`, `__` for `_` and `___`
for `-`. CLUSTER_ID is the cluster's id.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from kpybroker.config import parse_properties
from kpybroker.config.property_files import read_properties

log = logging.getLogger(__name__)

PREFIX, OWN = "KAFKA_", "kpybroker."
CLUSTER_ID = "CLUSTER_ID"
MOUNTED = Path("/mnt/shared/config/server.properties")
"""The path at which that image looks for a properties file. Variables override its settings."""
DATA = "/var/lib/kafka/data"
"""The volume of that image, and the default data directory of our image."""
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
"""Variables for the JVM, its logging and its start scripts, which do not apply here."""
SERVICE_LINK = re.compile(r"KAFKA_(SERVICE|PORT)(_[A-Z0-9_]+)?")
"""Variables that Kubernetes sets in every pod for a service named `kafka`."""
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
"""The settings of that image without any variables."""


def setting_name(variable: str) -> str:
    """The setting of a variable: `a.b_c-d` for `KAFKA_A_B__C___D`."""
    name = variable.removeprefix(PREFIX).lower().replace("_", ".")
    return name.replace("...", "-").replace("..", "_")


def read_environment(environment: Mapping[str, str], file: Path | None = None) -> dict[str, str]:
    """Settings by name. Variables override those of `file`, or of the file that is mounted where that image expects it.

    Without variables and without a file, the node serves clients on this host. Raises ConfigError for an unreadable
    file or value.
    """
    variables = [name for name in environment if name.startswith(PREFIX) and not SERVICE_LINK.fullmatch(name)]
    without_use = sorted(name for name in variables if name in NO_SETTINGS)
    if without_use:
        log.warning("%s: ignored, as there is no JVM", ", ".join(without_use))
    # parsed as the text of a properties file, so that backslashes have the same meaning
    lines = [f"{setting_name(name)}={environment[name]}" for name in variables if name not in NO_SETTINGS]
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
    """If `listeners` is not set, listen on the ports of advertised.listeners, on all addresses of the container."""
    advertised = settings.get("advertised.listeners")
    if advertised and not settings.get("listeners") and "broker" in settings.get("process.roles", "broker"):
        settings["listeners"] = ",".join(
            f"{name}://0.0.0.0:{place.rpartition(':')[2]}"
            for name, _, place in (one.strip().partition("://") for one in advertised.split(","))
        )
