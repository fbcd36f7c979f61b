"""A controller that may form a new cluster alone (kpybroker.initial.controllers=standalone) looks for an existing one.

An empty directory looks the same on a first start and after its disk was lost. A second cluster with the same id would
accept writes that are lost later. So, before it formats its directory, the node asks the controllers of
controller.quorum.bootstrap.servers whether they have a cluster. If all of them are down, it forms one. When they are
back, they send their requests to this node with the id of its lost directory: it then asks them again, and stops if
they belong to a cluster.
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
"""The endpoint type of a DescribeCluster that goes to a controller (KIP-919)."""


def way_out(cluster_id: str) -> str:
    """What to do with a node that would form a second cluster. `cluster_id` is that of the first one."""
    return (
        f"if this node's directory was lost, set kpybroker.initial.controllers=none and kpybroker.cluster.id="
        f"{cluster_id}, and start it on an empty directory: it follows the others, and votes once it is added; if you "
        "want a new cluster, empty the directories of the other controllers too"
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
    """Asks the other controllers again, for a node that is the only voter of its cluster."""

    def __init__(self, world: World, driver: Driver) -> None:
        self._world = world
        self._driver = driver
        self._task: asyncio.Task[None] | None = None

    def check_again(self) -> None:
        """Another node has sent a request for a voter with this id and another directory."""
        driver = self._driver
        is_idle = self._task is None or self._task.done()
        if is_idle and driver.voters.are_alone and driver.config.controller_quorum_bootstrap_servers:
            self._task = begin(self._ask_again(), "asking the other controllers of their cluster", driver.fail)

    async def close(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _ask_again(self) -> None:
        me = self._driver.identity
        for found in await ask_others(self._world, self._driver.config, me.cluster_id):
            if found.leader_id not in (NOBODY, me.node_id):
                self._driver.fail(
                    f"this node is alone in cluster {me.cluster_id}, and the controller at {found.where} is in one of "
                    f"the same id that node {found.leader_id} leads in epoch {found.epoch}; "
                    f"{way_out(me.cluster_id)}"
                )


async def checked_format(world: World, config: BrokerConfig) -> Format:
    """How to format an empty directory. Raises ConfigError if the node would form a second cluster."""
    wanted = wanted_format(config)
    servers = config.controller_quorum_bootstrap_servers
    if wanted.voter is None or not servers or world.disk.exists(f"{config.metadata_log_dir}/{META_PROPERTIES}"):
        return wanted
    for found in await ask_others(world, config, None):
        if found.epoch > 0:
            leads = "" if found.leader_id == NOBODY else f", which node {found.leader_id} leads"
            raise ConfigError(
                f"{config.metadata_log_dir} is empty, and node {config.node_id} would form a cluster, but the "
                f"controller at {found.where} has one already (epoch {found.epoch}{leads}); "
                f"{way_out(found.cluster_id or 'ID')}"
            )
    log.info("node %d forms a new cluster: no controller of %s knows of one", config.node_id, _listed(config))
    return wanted


async def ask_others(world: World, config: BrokerConfig, cluster_id: str | None) -> list[FoundCluster]:
    """The quorums of the bootstrap servers that answer. `cluster_id`: ask about this cluster only; None for any."""
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
            log.debug("the controller at %s:%d does not answer: %s", host, port, reason)
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
