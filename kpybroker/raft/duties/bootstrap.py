"""A controller that founds a cluster of its own (kpybroker.initial.controllers=standalone): is there one already?

Nothing on an empty directory tells a first start from one after its disk was lost, and a second cluster of the same id
would take writes that are lost. So the controllers of controller.quorum.bootstrap.servers are asked before it is
formatted. Where all of them were down then, they look for this node later, by the directory that it had: they are asked
again, and a node that is mistaken stops.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from kpybroker.client.peer import Peer
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
    """What to do with a node that would found a second cluster. `cluster_id` is that of the first one."""
    return (
        f"if this node's directory was lost, set kpybroker.initial.controllers=none and kpybroker.cluster.id="
        f"{cluster_id}, and start it on an empty directory: it follows the others, and votes once it is added; if you "
        "want a new cluster, empty the directories of the other controllers too"
    )


class Told(NamedTuple):
    """What another controller says of its quorum."""

    where: str
    leader_id: int
    epoch: int
    cluster_id: str | None
    """None where it does not say."""


class Founding:
    """The doubts of a node that is its cluster's only voter."""

    def __init__(self, world: World, driver: Driver) -> None:
        self._world = world
        self._driver = driver
        self._task: asyncio.Task[None] | None = None

    def doubt(self) -> None:
        """Somebody takes this node for a voter with another directory."""
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
        for told in await ask_others(self._world, self._driver.config, me.cluster_id):
            if told.leader_id not in (NOBODY, me.node_id):
                self._driver.fail(
                    f"this node is alone in cluster {me.cluster_id}, and the controller at {told.where} is in one of "
                    f"the same id that node {told.leader_id} leads in epoch {told.epoch}; "
                    f"{way_out(me.cluster_id)}"
                )


async def checked_format(world: World, config: BrokerConfig) -> Format:
    """With what an empty directory is formatted. Raises ConfigError: it would found a cluster, and there is one."""
    wanted = wanted_format(config)
    servers = config.controller_quorum_bootstrap_servers
    if wanted.voter is None or not servers or world.disk.exists(f"{config.metadata_log_dir}/{META_PROPERTIES}"):
        return wanted
    for told in await ask_others(world, config, None):
        if told.epoch > 0:
            leads = "" if told.leader_id == NOBODY else f", which node {told.leader_id} leads"
            raise ConfigError(
                f"{config.metadata_log_dir} is empty, and node {config.node_id} would found a cluster, but the "
                f"controller at {told.where} has one already (epoch {told.epoch}{leads}); "
                f"{way_out(told.cluster_id or 'ID')}"
            )
    log.info("node %d founds a new cluster: no controller of %s knows of one", config.node_id, _listed(config))
    return wanted


async def ask_others(world: World, config: BrokerConfig, cluster_id: str | None) -> list[Told]:
    """What those say who answer, of this cluster or of any."""
    me = Identity("", config.node_id, NO_DIRECTORY, None)
    request = me.fetch(0, Tail(), log_start=0, high_watermark=0, wait_ms=0, max_bytes=1)
    request.cluster_id = cluster_id

    async def ask(host: str, port: int) -> Told | None:
        peer = None
        try:
            async with asyncio.timeout(config.controller_quorum_request_timeout_ms / 1000):
                peer = await Peer.meet(world.network, host, port, client_id=me.client_id)
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
            Told(
                f"{host}:{port}",
                row.current_leader.leader_id,
                row.current_leader.leader_epoch,
                cluster.cluster_id or None,
            )
            for row in rows
        ]
        return leaders[0] if leaders else None

    found = await asyncio.gather(*(ask(*server) for server in config.controller_quorum_bootstrap_servers))
    return [told for told in found if told is not None]


def _listed(config: BrokerConfig) -> str:
    return ", ".join(f"{host}:{port}" for host, port in config.controller_quorum_bootstrap_servers)
