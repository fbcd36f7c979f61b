"""Plans the cluster of `dev --brokers N`: the nodes, their ports, and a properties file for each.

The files are next to the data. `node-2.properties` can start node 2 alone (`kpybroker serve --config`), and at the next
start the files show which cluster the data belongs to. `node-2` is the data directory of node 2.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

from kpybroker.cli.children import ChildNode
from kpybroker.cli.lifetime import complain
from kpybroker.config import BrokerConfig, parse_config, parse_properties
from kpybroker.errors import ConfigError
from kpybroker.storage.dirs.directory import FURTHER_NODE
from kpybroker.storage.dirs.formatting import META_PROPERTIES, encode_id, random_id
from kpybroker.world.sharing_ports import keep_for_one
from kpybroker.world.usable_cores import usable_cores

HOST = "127.0.0.1"
BROKERS_MAX = 50
AUTO = 0
"""The number of brokers that stands for one broker for each usable core."""
VOTERS_MAX = 5
CONTROLLERS_FROM = 100
"""Distance of the first controller port from the first client port, which leaves room for more brokers."""
DEV_DEFAULTS = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "0",
}
"""A short heartbeat interval, as people on a laptop wait for each rebalance. Kafka's 5 s suit thousands of members."""
OURS = ("node.id", "process.roles", "listeners", "log.dirs", "controller.quorum.voters", "kpybroker.http.port")
"""Settings that the plan determines; --set cannot change them."""


class LocalNode(NamedTuple):
    """One node of the plan. `write` creates its properties file; `Ports` reserves its ports."""

    node_id: int
    directory: Path
    """The directory of the whole cluster."""
    properties: Mapping[str, str]

    @property
    def config(self) -> BrokerConfig:
        """The node's parsed settings. Raises ConfigError."""
        return parse_config(self.properties, "--set")

    @property
    def as_child(self) -> ChildNode:
        """How the parent process runs it. Raises ConfigError."""
        arguments = ("--ready-file", str(self.ready_file))
        return ChildNode(self.node_id, self.properties, self.config.metadata_log_dir, arguments)

    @property
    def ready_file(self) -> Path:
        """The path of a JSON file with the node's bootstrap address, data directory and process id. It exists while the
        node serves clients."""
        return self.directory / f"node-{self.node_id}.ready"

    @property
    def properties_file(self) -> Path:
        return _properties_file(self.directory, self.node_id)

    def write(self) -> None:
        """Write the properties file. Raises OSError."""
        lines = [f"{name}={_escaped(value)}\n" for name, value in self.properties.items()]
        text = "# written by `kpybroker dev --brokers` at every start\n" + "".join(lines)
        path = self.properties_file
        path.touch(0o600)
        path.chmod(0o600)  # the file may contain passwords, and an earlier version made it readable by all users
        path.write_text(text, encoding="utf-8")


class Ports:
    """Reserves ports for the nodes by binding them without listening, so that only the nodes can listen on them.

    On Linux a socket may listen on a port that another socket has only bound, if both set SO_REUSEADDR, and the kernel
    never assigns a bound port as a free port. So the port of a node that ends stays reserved while the others run.
    macOS and Windows do not allow this, so the ports are released there just before the nodes start.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def hold(self, port: int) -> int:
        """Reserve a port and return it; 0 stands for any free port. Raises ConfigError if the port is in use."""
        if port and port in {each.getsockname()[1] for each in self._held}:
            raise ConfigError(
                f"port {port} is needed twice: brokers listen from --port on, controllers {CONTROLLERS_FROM} above, "
                "HTTP from --http-port on; choose another --port or --http-port"
            )
        holding = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            keep_for_one(holding)
            holding.bind((HOST, port))
        except OSError as error:
            holding.close()
            raise ConfigError(
                f"cannot listen on {HOST}:{port}: {error.strerror}; choose another --port, or 0 for free ones"
            ) from error
        self._held.append(holding)
        found: int = holding.getsockname()[1]
        return found

    def let_nodes_listen(self) -> None:
        """Release the ports if nodes cannot listen on reserved ports (macOS, Windows)."""
        if not self._held:
            return
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trying:
            keep_for_one(trying)
            try:
                trying.bind(self._held[0].getsockname())
            except OSError:
                self.close()

    def close(self) -> None:
        """Release all ports."""
        for holding in self._held:
            holding.close()


class LocalClusterOptions(NamedTuple):
    """The options of `dev`. `brokers`: their number, or AUTO. `http_port`: the port of the HTTP pages of all nodes, or
    None."""

    brokers: int
    port: int
    http_port: int | None
    settings: Mapping[str, str]
    shares_work: bool = False
    """Whether the brokers are for the cores of this machine (--brokers auto), so that one replica is enough."""


def plan(directory: Path, wanted: LocalClusterOptions, defaults: Mapping[str, str], ports: Ports) -> list[LocalNode]:
    """The nodes of a cluster with its data below `directory`. Raises ConfigError."""
    count = wanted.brokers
    for name in OURS:
        if name in wanted.settings:
            raise ConfigError(f"--set {name} cannot be the same for {count} brokers; use `kpybroker serve` for one")
    known = existing_nodes(directory)
    _check_directory(directory, count, known)
    before = _read(directory, known[0]) if known else {}
    votes = len(before["controller.quorum.voters"].split(",")) if before else voters_among(count)
    highest = wanted.port + count - 1
    if wanted.port and highest > 65535:
        raise ConfigError(
            f"--port {wanted.port} with --brokers {count} needs ports up to {highest}; choose a lower one"
        )
    if wanted.http_port:
        ports.hold(wanted.http_port)
    clients = [ports.hold(wanted.port + place if wanted.port else 0) for place in range(count)]
    controllers = [ports.hold(_controller_port(wanted.port, place)) for place in range(votes)]
    every = {
        "controller.listener.names": "CONTROLLER",  # the default here, but Apache Kafka requires the setting
        **defaults,
        **replication(1 if wanted.shares_work else count),
        **wanted.settings,
        "kpybroker.cluster.id": before.get("kpybroker.cluster.id") or encode_id(random_id(Random())),
        "controller.quorum.voters": ",".join(f"{id_}@{HOST}:{port}" for id_, port in enumerate(controllers, 1)),
    }
    nodes = []
    for node_id, port in enumerate(clients, 1):
        own = {"node.id": str(node_id), "log.dirs": str(directory / f"node-{node_id}")}
        own |= {"process.roles": "broker", "listeners": f"PLAINTEXT://{HOST}:{port}"}
        if node_id <= votes:
            own["process.roles"] = "broker,controller"
            own["listeners"] += f",CONTROLLER://{HOST}:{controllers[node_id - 1]}"
        if wanted.http_port is not None:
            own |= inner_pages(ports.hold(wanted.http_port and wanted.http_port + node_id), wanted.settings)
        nodes.append(LocalNode(node_id, directory, {**every, **own}))
    return nodes


def for_cores(wanted: LocalClusterOptions, directory: Path) -> LocalClusterOptions:
    """The options with one broker for each usable core, or with those whose data is in the directory. Says so on
    stderr."""
    _refuse_served(directory)
    if (directory / META_PROPERTIES).exists():
        count = 1
        complain(f"kpybroker: 1 broker, because {directory} has the data of a single broker")
    else:
        count = brokers_for_cores(len(existing_nodes(directory)))
    return wanted._replace(brokers=count, shares_work=True)


def brokers_for_cores(with_data: int) -> int:
    """One broker for each usable core, but not fewer than the place of the last one with data. Says so on stderr."""
    cores = usable_cores()
    count = min(max(cores, with_data), BROKERS_MAX)
    usable = f"{cores} usable core{'s' if cores > 1 else ''}"
    why = f"one for each of {usable}" if count == cores else f"broker number {with_data} has data; {usable}"
    complain(f"kpybroker: {count} broker{'s' if count > 1 else ''} ({why})")
    return count


def inner_pages(port: int, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of a node's own HTTP pages, where the parent process asks it: on this machine, without TLS."""
    inner = {"kpybroker.http.port": str(port), "kpybroker.http.host": HOST}
    return inner | {name: "" for name in ("kpybroker.http.tls.listener",) if name in settings}


def voters_among(brokers: int) -> int:
    """The number of voters. It is odd, because one more voter would not let the quorum tolerate more failures."""
    return min(brokers - 1 | 1, VOTERS_MAX) if brokers > 1 else 1


def replication(brokers: int) -> dict[str, str]:
    """Usual replication settings for this number of brokers: up to three replicas, at least two of three in sync."""
    replicas, in_sync = str(min(brokers, 3)), "2" if brokers >= 3 else "1"
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
    }


def existing_nodes(directory: Path) -> list[int]:
    """The ids of nodes that have a properties file, in order."""
    names = (re.fullmatch(r"node-([1-9][0-9]{0,8})\.properties", path.name) for path in directory.glob("node-*"))
    return sorted(int(name[1]) for name in names if name)


def check_alone(directory: Path) -> None:
    """Check that a directory for a single broker does not have the data of several brokers. Raises ConfigError."""
    _refuse_served(directory)
    known = existing_nodes(directory)
    if known:
        raise ConfigError(
            f"{directory} has the data of {len(known)} brokers; start it with --brokers {len(known)}, or choose "
            "another --data-dir"
        )


def _refuse_served(directory: Path) -> None:
    """Raise ConfigError if the directory has the data of `serve --brokers`."""
    try:
        names = [path.parent.name for path in directory.glob(f"broker.*/{META_PROPERTIES}")]
    except OSError:
        return  # opening it will raise the error
    ids = sorted(int(match[1]) for match in map(FURTHER_NODE.fullmatch, names) if match)
    if ids:
        raise ConfigError(
            f"{directory}/broker.{ids[-1]} has the replicas of broker {ids[-1]} of `kpybroker serve --brokers "
            f"N`, which would not be served; start it with that command, or choose another --data-dir"
        )


def _check_directory(directory: Path, count: int, known: list[int]) -> None:
    _refuse_served(directory)
    if (directory / META_PROPERTIES).exists():
        raise ConfigError(
            f"{directory} has the data of a single broker, which cannot become several; choose another --data-dir"
        )
    if known and count < len(known):
        raise ConfigError(
            f"{directory} has the data of {len(known)} brokers; start it with --brokers {len(known)} or more, or "
            "choose another --data-dir"
        )


def _read(directory: Path, node_id: int) -> Mapping[str, str]:
    """Read the properties file of an existing node. Raises ConfigError."""
    path = _properties_file(directory, node_id)
    try:
        found = parse_properties(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; it names the cluster of {directory}") from error
    if not found.get("controller.quorum.voters"):
        raise ConfigError(f"{path} has no controller.quorum.voters; restore it, or choose another --data-dir")
    return found


def _controller_port(port: int, place: int) -> int:
    if not port:
        return 0
    above = port + CONTROLLERS_FROM + place
    return above if above <= 65535 else port - CONTROLLERS_FROM + place


def _properties_file(directory: Path, node_id: int) -> Path:
    return directory / f"node-{node_id}.properties"


def _escaped(value: str) -> str:
    """A value for a properties file, with backslashes, newlines and leading spaces escaped."""
    shown = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return "\\" + shown if shown[:1] in (" ", "\t", "\f") else shown
