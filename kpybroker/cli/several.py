"""Runs the nodes of `dev --brokers` and `serve --brokers`: one process to stop, one log, one HTTP port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kpybroker.cli import children, early
from kpybroker.cli.children import ChildNode, KeptNode
from kpybroker.cli.lifetime import Facts, Lifetime, Stop, end_with, log_build, prepare, remove_ready_file, report_ready
from kpybroker.cli.local_cluster import BROKERS_MAX, DEV_DEFAULTS, LocalClusterOptions, Ports, plan
from kpybroker.config import BrokerConfig, parse_config
from kpybroker.errors import ConfigError
from kpybroker.storage.dirs.directory import LOCK
from kpybroker.world.real import real_world

if TYPE_CHECKING:
    from kpybroker.cli.cluster_pages import ClusterPages

IN_USE = (
    "{} is in use by another kpybroker; stop it, or start this one with --port 0 and --data-dir DIRECTORY or "
    "--ephemeral"
)


class Several(NamedTuple):
    """The nodes to run. `data` is for the ready line; `pages` has the settings of the HTTP pages, if there are any."""

    nodes: Sequence[ChildNode]
    data: str
    pages: BrokerConfig | None


def dev_several(wanted: LocalClusterOptions, directory: Path, lifetime: Lifetime) -> None:
    """Run the nodes of `dev` with their data below a directory. Exits with 1 if they failed. Raises ConfigError."""
    if not 1 <= wanted.brokers <= BROKERS_MAX:
        raise ConfigError(f"--brokers {wanted.brokers}: give a number from 1 to {BROKERS_MAX}")
    prepare(lifetime)
    world = real_world()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = world.disk.lock(str(directory / LOCK))
    except BlockingIOError as error:
        raise ConfigError(IN_USE.format(directory)) from error
    except OSError as error:
        raise ConfigError(f"cannot use {directory}: {error.strerror}; choose another --data-dir") from error
    with contextlib.closing(Ports()) as ports, contextlib.ExitStack() as at_end:
        at_end.callback(world.disk.close, lock)  # Windows removes no file that is open
        nodes = plan(directory, wanted, DEV_DEFAULTS, ports)
        pages = None
        if wanted.http_port is not None:
            outer = {**nodes[0].properties, **wanted.settings, "kpybroker.http.port": str(wanted.http_port)}
            pages = parse_config(outer, "--set")
        try:
            for node in nodes:
                assert node.config, "invalid settings were refused before"
            for node in nodes:
                node.write()
        except OSError as error:
            raise ConfigError(f"cannot write {directory}: {error.strerror}; choose another --data-dir") from error
        ports.let_nodes_listen()
        run(Several([node.as_child for node in nodes], str(directory), pages), lifetime)


def run(several: Several, lifetime: Lifetime) -> None:
    """Run the nodes until they are asked to stop. Exits with 1 if they failed. Raises ConfigError."""
    log_build()
    failure = asyncio.run(_oversee(several, lifetime))
    early.ignore_signals()
    end_with(failure)


async def _oversee(several: Several, lifetime: Lifetime) -> str | None:
    """Start the nodes, print the ready line when all serve clients, watch them, and stop them so that each can hand
    over its leaderships. Returns the reason if they have ended by themselves. Raises ConfigError."""
    stop = Stop()
    stop.listen(lifetime)
    wish = asyncio.ensure_future(stop.wished.wait())
    nodes: list[KeptNode] = []
    pages: ClusterPages | None = None
    http = None
    try:
        for node in several.nodes:
            nodes.append(KeptNode(node, await children.start(node)))
        if several.pages is not None:
            from kpybroker.cli.cluster_pages import ClusterPages  # its imports would delay every other start

            pages = ClusterPages(real_world(), several.pages, lambda: _addresses(nodes))
            http = await pages.start()
        if (reason := await children.all_ready(nodes, wish)) is not None or wish.done():
            return reason
        bootstrap = ",".join(node.child.fact("bootstrap") for node in nodes)
        report_ready(Facts(bootstrap, several.data, http), lifetime.ready_file)
        return await children.watch(nodes, wish)
    finally:
        wish.cancel()
        await children.stop_all(nodes)
        if pages is not None:
            pages.close()
        remove_ready_file(lifetime.ready_file)


def _addresses(nodes: Sequence[KeptNode]) -> dict[int, str]:
    """Where the nodes serve their own pages, by node id; empty for a node that is starting, or waits for that."""
    return {node.node.node_id: node.http for node in nodes}
