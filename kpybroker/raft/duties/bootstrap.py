"""Queries the other controllers before a node opens or formats its directories.

A node that joins a cluster is refused if its directory or its settings contain the id of another one.

A controller that forms a new cluster alone (kpybroker.initial.controllers=standalone) checks for an existing one. An
empty directory looks the same on a first start and after the loss of a disk. If the node formed a second cluster with
the same id, writes to that cluster would be lost later. So the node queries the controllers in
controller.quorum.bootstrap.servers. If none of them responds, the node forms a cluster. If they start again later and
belong to the existing cluster, they send requests to this node with the id of its lost directory. The node then queries
them again, and stops if they belong to a cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kpybroker.client.dialer import controller_dialer
from kpybroker.client.peer import Peer
from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError, Damage
from kpybroker.raft.core.state import NOBODY, Tail
from kpybroker.raft.core.voter_set import NO_DIRECTORY
from kpybroker.raft.driver import Driver
from kpybroker.raft.duties.voter_rpcs import LOST
from kpybroker.raft.log.feature_check import check_joined
from kpybroker.raft.log.identity import Identity, wanted_format
from kpybroker.storage.dirs.directory import is_formatted, read_properties
from kpybroker.storage.dirs.formatting import META_PROPERTIES, Format
from kpybroker.tasks import begin
from kpybroker.wire.rpc import api_versions, describe_cluster

if TYPE_CHECKING:
    from kpybroker.world import World

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PATIENCE_MS = 10_000
"""How long controllers may take to answer before an empty directory is formatted, which cannot be undone."""
CONTROLLERS = 2
"""The endpoint type of a DescribeCluster that is sent to a controller (KIP-919)."""

Supported = Mapping[str, tuple[int, int]]
"""The lowest and the highest supported level of each feature."""


def way_out(cluster_id: str) -> str:
    """The remedy for a node that would form a second cluster. `cluster_id` is the id of the existing cluster."""
    return (
        f"if this node's directory was lost, set kpybroker.initial.controllers=none and kpybroker.cluster.id="
        f"{cluster_id}, and start it on an empty directory: it follows the other controllers, and votes once it has "
        "been added as a voter; if you want a new cluster, also empty the directories of the other controllers"
    )


class FoundCluster(NamedTuple):
    """The quorum that another controller belongs to."""

    where: str
    """Host and port of that controller."""
    leader_id: int
    epoch: int
    cluster_id: str | None
    """None if the controller did not report it."""
    levels: Mapping[str, int]
    """The finalized features."""


class BootstrapCheck:
    """Queries the other controllers again, on a node that is the only voter of its cluster."""

    def __init__(self, world: World, driver: Driver) -> None:
        self._world = world
        self._driver = driver
        self._task: asyncio.Task[None] | None = None

    def check_again(self) -> None:
        """Query the other controllers, because a node has sent a request for a voter with this id and another
        directory."""
        driver = self._driver
        is_idle = self._task is None or self._task.done()
        if is_idle and driver.voters.are_alone and driver.config.controller_quorum_bootstrap_servers:
            self._task = begin(self._ask_again(), "querying the other controllers about their cluster", driver.fail)

    async def close(self) -> None:
        """Cancel the query, if there is one."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _ask_again(self) -> None:
        me, config = self._driver.identity, self._driver.config
        for found in await ask_others(self._world, config, me.cluster_id, config.controller_quorum_request_timeout_ms):
            if found.leader_id not in (NOBODY, me.node_id):
                self._driver.fail(
                    f"this node is alone in cluster {me.cluster_id}, but the controller at {found.where} is in another "
                    f"cluster with the same id, which node {found.leader_id} leads in epoch {found.epoch}; "
                    f"{way_out(me.cluster_id)}"
                )


async def checked_format(world: World, config: BrokerConfig, supported: Supported) -> Format:
    """Determine how to format an empty directory. Raises ConfigError if the node would form a second cluster, or if the
    controllers that respond belong to another cluster than this node or its directory, or have a feature level that is
    not supported."""
    wanted = wanted_format(config)
    if is_formatted(world, config.metadata_log_dir):
        await _check_directory(world, config, wanted)
    elif wanted.voter is not None:
        if config.controller_quorum_bootstrap_servers:
            await _check_alone(world, config)
    elif not any(is_formatted(world, path) for path in config.log_dirs):  # those that are formatted have the id
        await _check_cluster(world, config, wanted, supported)
    return wanted


async def _check_directory(world: World, config: BrokerConfig, wanted: Format) -> None:
    path = config.metadata_log_dir
    try:
        mine = read_properties(world, f"{path}/{META_PROPERTIES}").get("cluster.id")
    except (OSError, Damage):
        return
    if mine is None or wanted.cluster_id not in (None, mine):  # opening the directory raises the error
        return
    found = await _clusters_of_others(world, config)
    if not found or mine in found.values():
        return
    raise ConfigError(
        f"{path} belongs to cluster {mine}, but the controllers at {', '.join(found)} belong to cluster "
        f"{', '.join(dict.fromkeys(found.values()))}; name the controllers of this node's cluster, or start the node "
        "on an empty directory to join theirs. Nothing was changed"
    )


async def _check_cluster(world: World, config: BrokerConfig, wanted: Format, supported: Supported) -> None:
    mine = wanted.cluster_id or wanted.new_cluster_id
    if mine is None:  # an error of the format
        return
    answers = await ask_others(world, config, None, FIRST_PATIENCE_MS)
    found = [each for each in answers if each.cluster_id is not None and each.leader_id != NOBODY]
    members = [each for each in found if each.cluster_id == mine]
    if found and not members:
        theirs = ", ".join(dict.fromkeys(str(each.cluster_id) for each in found))
        raise ConfigError(
            f"{config.metadata_log_dir} is empty, and node {config.node_id} would belong to cluster {mine}, but the "
            f"controllers at {', '.join(each.where for each in found)} belong to cluster {theirs}; set "
            "kpybroker.cluster.id to the id of their cluster to join it, or name the controllers of this node's cluster"
        )
    for each in members:
        check_joined(each.levels, supported)


async def _check_alone(world: World, config: BrokerConfig) -> None:
    for found in await ask_others(world, config, None, FIRST_PATIENCE_MS):
        if found.epoch > 0:
            leads = "" if found.leader_id == NOBODY else f", which node {found.leader_id} leads"
            raise ConfigError(
                f"{config.metadata_log_dir} is empty, and node {config.node_id} would form a new cluster, but the "
                f"controller at {found.where} belongs to a cluster already (epoch {found.epoch}{leads}); "
                f"{way_out(found.cluster_id or 'ID')}"
            )
    listed = ", ".join(f"{host}:{port}" for host, port in config.controller_quorum_bootstrap_servers)
    log.info("node %d forms a new cluster: no controller of %s belongs to a cluster", config.node_id, listed)


async def ask_others(
    world: World, config: BrokerConfig, cluster_id: str | None, patience_ms: int
) -> list[FoundCluster]:
    """Return the quorums of the other controllers that respond in time. `cluster_id` limits the query to one cluster,
    unless it is None."""
    me = Identity("", config.node_id, NO_DIRECTORY, None)
    request = me.fetch(0, Tail(), log_start=0, high_watermark=0, wait_ms=0, max_bytes=1)
    request.cluster_id = cluster_id

    async def ask(peer: Peer, where: str) -> FoundCluster | None:
        answer = await peer.ask("Fetch", request)
        cluster = await peer.ask("DescribeCluster", describe_cluster.Request(endpoint_type=CONTROLLERS))
        software = api_versions.Request(client_software_name="kpybroker", client_software_version="1")
        features = await peer.ask("ApiVersions", software)
        rows = [row for topic in answer.responses for row in topic.partitions if row.current_leader is not None]
        leaders = [
            FoundCluster(
                where,
                row.current_leader.leader_id,
                row.current_leader.leader_epoch,
                cluster.cluster_id or None,
                {each.name: each.max_version_level for each in features.finalized_features},
            )
            for row in rows
        ]
        return leaders[0] if leaders else None

    return list((await _answers(world, config, patience_ms, ask)).values())


async def _clusters_of_others(world: World, config: BrokerConfig) -> dict[str, str]:
    """Host and port of each other controller that responds and knows the active one, and the id of its cluster. One
    that waits for others may itself be on the wrong directory."""

    async def ask(peer: Peer, _where: str) -> str | None:
        told = await peer.ask("DescribeCluster", describe_cluster.Request(endpoint_type=CONTROLLERS))
        return told.cluster_id if told.cluster_id and told.controller_id >= 0 else None

    return await _answers(world, config, config.controller_quorum_request_timeout_ms, ask)


async def _answers(
    world: World, config: BrokerConfig, patience_ms: int, ask: Callable[[Peer, str], Awaitable[T | None]]
) -> dict[str, T]:
    """Ask the other controllers, and perhaps this node. Returns what those that respond in time say, by host and
    port."""
    dialer = controller_dialer(world, config)
    client_id = Identity("", config.node_id, NO_DIRECTORY, None).client_id

    async def answer(host: str, port: int) -> T | None:
        peer = None
        try:
            async with asyncio.timeout(patience_ms / 1000):
                peer = await dialer.meet(host, port, client_id=client_id)
                return await ask(peer, f"{host}:{port}")
        except LOST as reason:
            log.debug("the controller at %s:%d does not respond: %s", host, port, reason)
            return None
        finally:
            if peer is not None:
                peer.close()

    servers = config.controller_quorum_bootstrap_servers or [
        (voter.host, voter.port) for voter in config.controller_quorum_voters if voter.node_id != config.node_id
    ]
    found = await asyncio.gather(*(answer(*server) for server in servers))
    return {f"{host}:{port}": each for (host, port), each in zip(servers, found, strict=True) if each is not None}
