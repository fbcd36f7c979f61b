"""Checks for an existing cluster before a controller forms a new one alone (kpybroker.initial.controllers=standalone).

An empty directory looks the same on a first start and after the loss of a disk. If the node formed a second cluster
with the same id, writes to that cluster would be lost later. So, before it formats its directory, the node queries the
controllers in controller.quorum.bootstrap.servers. If none of them responds, the node forms a cluster. If they start
again later and belong to the existing cluster, they send requests to this node with the id of its lost directory. The
node then queries them again, and stops if they belong to a cluster.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from kpybroker.client.dialer import controller_dialer
from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError
from kpybroker.raft.core.state import NOBODY, Tail
from kpybroker.raft.core.voter_set import NO_DIRECTORY
from kpybroker.raft.driver import Driver
from kpybroker.raft.duties.voter_rpcs import LOST
from kpybroker.raft.log.identity import Identity, wanted_format
from kpybroker.storage.dirs.formatting import META_PROPERTIES, Format
from kpybroker.tasks import begin
from kpybroker.wire.rpc import describe_cluster

if TYPE_CHECKING:
    from kpybroker.world import World

log = logging.getLogger(__name__)

CONTROLLERS = 2
"""The endpoint type of a DescribeCluster that is sent to a controller (KIP-919)."""


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
        me = self._driver.identity
        for found in await ask_others(self._world, self._driver.config, me.cluster_id):
            if found.leader_id not in (NOBODY, me.node_id):
                self._driver.fail(
                    f"this node is alone in cluster {me.cluster_id}, but the controller at {found.where} is in another "
                    f"cluster with the same id, which node {found.leader_id} leads in epoch {found.epoch}; "
                    f"{way_out(me.cluster_id)}"
                )


async def checked_format(world: World, config: BrokerConfig) -> Format:
    """Determine how to format an empty directory. Raises ConfigError if the node would form a second cluster."""
    wanted = wanted_format(config)
    servers = config.controller_quorum_bootstrap_servers
    if wanted.voter is None or not servers or world.disk.exists(f"{config.metadata_log_dir}/{META_PROPERTIES}"):
        return wanted
    for found in await ask_others(world, config, None):
        if found.epoch > 0:
            leads = "" if found.leader_id == NOBODY else f", which node {found.leader_id} leads"
            raise ConfigError(
                f"{config.metadata_log_dir} is empty, and node {config.node_id} would form a new cluster, but the "
                f"controller at {found.where} belongs to a cluster already (epoch {found.epoch}{leads}); "
                f"{way_out(found.cluster_id or 'ID')}"
            )
    log.info("node %d forms a new cluster: no controller of %s belongs to a cluster", config.node_id, _listed(config))
    return wanted


async def ask_others(world: World, config: BrokerConfig, cluster_id: str | None) -> list[FoundCluster]:
    """Return the quorums of the bootstrap servers that respond. `cluster_id` limits the query to one cluster, unless it
    is None."""
    me = Identity("", config.node_id, NO_DIRECTORY, None)
    request = me.fetch(0, Tail(), log_start=0, high_watermark=0, wait_ms=0, max_bytes=1)
    request.cluster_id = cluster_id

    dialer = controller_dialer(world, config)

    async def ask(host: str, port: int) -> FoundCluster | None:
        peer = None
        try:
            async with asyncio.timeout(config.controller_quorum_request_timeout_ms / 1000):
                peer = await dialer.meet(host, port, client_id=me.client_id)
                answer = await peer.ask("Fetch", request)
                cluster = await peer.ask("DescribeCluster", describe_cluster.Request(endpoint_type=CONTROLLERS))
        except LOST as reason:
            log.debug("the controller at %s:%d does not respond: %s", host, port, reason)
            return None
        finally:
            if peer is not None:
                peer.close()
        rows = [row for topic in answer.responses for row in topic.partitions if row.current_leader is not None]
        leaders = [
            FoundCluster(
                f"{host}:{port}",
                row.current_leader.leader_id,
                row.current_leader.leader_epoch,
                cluster.cluster_id or None,
            )
            for row in rows
        ]
        return leaders[0] if leaders else None

    answers = await asyncio.gather(*(ask(*server) for server in config.controller_quorum_bootstrap_servers))
    return [answer for answer in answers if answer is not None]


def _listed(config: BrokerConfig) -> str:
    return ", ".join(f"{host}:{port}" for host, port in config.controller_quorum_bootstrap_servers)
