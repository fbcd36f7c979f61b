"""Derives the nodes of `serve --brokers` from one properties file, so that a machine runs several brokers.

The first node is the one that the file describes: it has the file's id, ports, directories and roles. Each further node
is a broker with the next id. Each of its listeners has the next port that neither the file nor an earlier node uses,
and its data is in a directory `broker.ID` in each of log.dirs. This name is not that of a partition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from itertools import count
from random import Random

from kpybroker.cli.children import ChildNode
from kpybroker.cli.local_cluster import AUTO, BROKERS_MAX, HOST, brokers_for_cores, inner_pages
from kpybroker.config import BrokerConfig, Endpoint, parse_config
from kpybroker.config.listeners import ANY_ADDRESS, PORT_MAX
from kpybroker.errors import ConfigError, Damage
from kpybroker.raft.log.identity import wanted_format
from kpybroker.storage.dirs.directory import FURTHER_NODE, encode_id, random_id, read_properties
from kpybroker.storage.dirs.formatting import META_PROPERTIES
from kpybroker.world import World

CLUSTER_ID, SERVERS = "kpybroker.cluster.id", "controller.quorum.bootstrap.servers"


def derive_nodes(
    world: World, first: BrokerConfig, properties: Mapping[str, str], brokers: int, source: str
) -> list[ChildNode]:
    """The nodes, the first of which is that of the properties, parsed as `first`. `brokers` is their number, or AUTO.
    `source` is where the properties are from. Raises ConfigError."""
    with_data = _further_directories(world, first)
    if brokers == AUTO:
        last = with_data[-1][0] if with_data else first.node_id
        brokers = brokers_for_cores(min(last - first.node_id + 1, BROKERS_MAX))
    _refuse_fewer(first, brokers, with_data)
    if brokers == 1:
        return [ChildNode(first.node_id, properties, first.metadata_log_dir)]
    _check(first, brokers, source)
    extra = _cluster_id(world, first, with_data)
    if first.http_port is not None:
        extra |= inner_pages(0, properties)
    nodes = [ChildNode(first.node_id, {**properties, **extra}, first.metadata_log_dir)]
    taken = {first.http_port, *(endpoint.port for endpoint in (*first.listeners, *first.controller_listeners))}
    taken |= {voter.port for voter in first.controller_quorum_voters}
    taken |= {server.port for server in first.controller_quorum_bootstrap_servers}
    for node_id in range(first.node_id + 1, first.node_id + brokers):
        own = {**properties, **extra, **_further_node(first, properties, node_id, taken)}
        config = parse_config(own, source)
        hint = f"the ports of node {node_id} follow from those of node {first.node_id}: choose other ones in listeners"
        nodes.append(ChildNode(node_id, own, config.metadata_log_dir, hint=hint))
    return nodes


def _refuse_fewer(first: BrokerConfig, brokers: int, with_data: Sequence[tuple[int, str]]) -> None:
    last = first.node_id + brokers - 1
    if not with_data or with_data[-1][0] <= last:
        return
    node_id, path = with_data[-1]
    missing = node_id - first.node_id + 1
    if missing > BROKERS_MAX:
        raise ConfigError(
            f"{path} has the replicas of broker {node_id}, and node.id={first.node_id} with at most {BROKERS_MAX} "
            f"brokers ends at broker {first.node_id + BROKERS_MAX - 1}; move that directory to a place of its own, and "
            "start it with its own properties file"
        )
    others = ",".join(str(other) for other in range(first.node_id, last + 1))
    raise ConfigError(
        f"{path} has the replicas of broker {node_id}, which would not be served; start with --brokers {missing}; to "
        f"do without broker {node_id}, then run `kpybroker reassign start --all-topics --brokers {others} --execute "
        f"--wait`, stop, move that directory aside, start, run `kpybroker brokers unregister {node_id}`, and remove "
        "the directory only if that succeeds; otherwise move it back and begin again"
    )


def _further_directories(world: World, first: BrokerConfig) -> list[tuple[int, str]]:
    """The ids of further nodes, in order, each with a directory of it. The directory may contain no partition, because
    the log of a replica without records has no directory."""
    found = []
    for path in _directories(first):
        # a log directory that cannot be read is the node's to report: it may serve the others
        with contextlib.suppress(OSError):
            for name in world.disk.list(path) if world.disk.exists(path) else []:
                match = FURTHER_NODE.fullmatch(name)
                if match and int(match[1]) > first.node_id and world.disk.exists(f"{path}/{name}/{META_PROPERTIES}"):
                    found.append((int(match[1]), f"{path}/{name}"))
    return sorted(found)


def _directories(first: BrokerConfig) -> list[str]:
    return list(dict.fromkeys((first.metadata_log_dir, *first.log_dirs)))


def _check(first: BrokerConfig, brokers: int, source: str) -> None:
    """Raise ConfigError if nodes cannot be derived from these settings."""
    if brokers > BROKERS_MAX:
        raise ConfigError(f"--brokers {brokers}: give a number from 1 to {BROKERS_MAX}, or auto")
    if "broker" not in first.process_roles:
        raise ConfigError(
            f"{source}: process.roles lacks broker, and more brokers do not help a controller; omit --brokers"
        )
    last = first.node_id + brokers - 1
    for voter in first.controller_quorum_voters:
        if first.node_id < voter.node_id <= last:
            raise ConfigError(
                f"{source}: --brokers {brokers} needs the ids {first.node_id} to {last}, and voter {voter.node_id} of "
                "controller.quorum.voters is another node; give the nodes of each machine ids further apart, such as "
                "node.id=100 and node.id=200"
            )
    for endpoint in first.listeners:
        if not endpoint.port:
            raise ConfigError(
                f"{source}: listeners: {endpoint.name} has port 0, from which the ports of {brokers} brokers cannot be "
                "derived; write a port"
            )
    knows_controllers = first.controller_quorum_voters or first.controller_quorum_bootstrap_servers
    if not knows_controllers and not any(endpoint.port for endpoint in first.controller_listeners):
        name = first.controller_listener_names[0]
        raise ConfigError(
            f"{source}: the other brokers cannot reach the controller of node {first.node_id}; add a listener of "
            f"controller.listener.names with a port to listeners, such as {name}://{HOST}:9093"
        )


def _cluster_id(world: World, first: BrokerConfig, with_data: Sequence[tuple[int, str]]) -> dict[str, str]:
    """The setting with the cluster's id for all nodes. It is empty if each node knows the id or computes it, or if the
    first node cannot know it and will say so. Raises ConfigError if the first node lacks its directory, because it
    would make a new cluster of an empty one."""
    known = _stored_id(world, first.metadata_log_dir)
    others = [path for path in _directories(first) if path != first.metadata_log_dir]
    for path in () if known else (*others, *(path for _, path in with_data)):
        if stored := _stored_id(world, path):
            raise ConfigError(
                f"{path} belongs to cluster {stored}, but {first.metadata_log_dir} is empty, where broker "
                f"{first.node_id} has the metadata; restore it; nothing was changed"
            )
    if first.cluster_id is not None:
        return {}
    wanted = wanted_format(first)
    if not known and wanted.voter is not None and wanted.unclear is None:
        known = encode_id(random_id(Random()))
    return {CLUSTER_ID: known} if known else {}


def _stored_id(world: World, path: str) -> str:
    """The id of the cluster that a directory belongs to; empty if it is not formatted. Raises ConfigError."""
    where = f"{path}/{META_PROPERTIES}"
    try:
        return read_properties(world, where).get("cluster.id", "")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, Damage) as error:
        raise ConfigError(f"cannot read {where}: {error}; restore it") from error


def _further_node(
    first: BrokerConfig, properties: Mapping[str, str], node_id: int, taken: set[int | None]
) -> dict[str, str]:
    advertised = {endpoint.name: endpoint for endpoint in first.advertised_listeners}
    own = {
        "node.id": str(node_id),
        "process.roles": "broker",
        "log.dirs": ",".join(f"{path}/{_name(node_id)}" for path in first.log_dirs),
    }
    if "broker.id" in properties:
        own["broker.id"] = str(node_id)
    if "metadata.log.dir" in properties:
        own["metadata.log.dir"] = f"{first.metadata_log_dir}/{_name(node_id)}"
    listening, named = [], []
    for endpoint in first.listeners:
        port = _next_port(endpoint, taken)
        listening.append(_listener(endpoint, port))
        shown = advertised[endpoint.name]
        named.append(_listener(shown, _shifted(shown.port, port - endpoint.port, node_id)))
    own["listeners"] = ",".join(listening)
    if properties.get("advertised.listeners"):
        own["advertised.listeners"] = ",".join(named)
    if not first.controller_quorum_voters and not first.controller_quorum_bootstrap_servers:
        controller = first.controller_listeners[0]
        own[SERVERS] = f"{HOST if controller.host in ('', *ANY_ADDRESS) else controller.host}:{controller.port}"
    return own


def _next_port(endpoint: Endpoint, taken: set[int | None]) -> int:
    """The next port above that of a listener. It is added to those that are taken. Raises ConfigError."""
    port = next(port for port in count(endpoint.port + 1) if port not in taken)
    if port > PORT_MAX:
        raise ConfigError(f"listeners: there is no port left above {endpoint.port} for {endpoint.name}; lower it")
    taken.add(port)
    return port


def _shifted(port: int, distance: int, node_id: int) -> int:
    if not 0 < port + distance <= PORT_MAX:
        raise ConfigError(
            f"advertised.listeners: broker {node_id} would have port {port + distance}; choose other ports"
        )
    return port + distance


def _listener(endpoint: Endpoint, port: int) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.name}://{host}:{port}"


def _name(node_id: int) -> str:
    return f"broker.{node_id}"
