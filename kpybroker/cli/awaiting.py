"""The commands `kpybroker wait` and `kpybroker stop`, for scripts and CI."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from kpybroker.cli import cluster_facts, options
from kpybroker.cli.show import show_json, show_line
from kpybroker.client.client import Client, CommandFailed

LOOK_EVERY_S = 0.1
SHOWN = 5
DEV_DATA_DIR = Path("kpybroker-data")


def wait(
    brokers: Annotated[
        int, typer.Option("--brokers", metavar="N", min=1, max=1000, help="Number of brokers to wait for (default: 1).")
    ] = 1,
    in_sync: Annotated[bool, options.flag("--in-sync", "Also wait until every replica is in sync.")] = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Wait up to --timeout seconds for the brokers to be up. If they are not, print the reason and exit with 1."""
    timeout_s = options.timeout_ms() / 1000
    deadline = time.monotonic() + timeout_s
    up: list[int] = []

    async def look(client: Client) -> None:
        nodes = [node for node in await cluster_facts.nodes(client) if not node.is_fenced]
        up[:] = [node.node_id for node in nodes]
        if len(up) < brokers:
            raise CommandFailed(f"{len(up)} of {brokers} brokers are up")
        facts = cluster_facts.count_partitions((await client.metadata()).values(), nodes)
        for node in up if in_sync else ():
            await cluster_facts.add_offline_logs(client, node, facts)
        lacking = sorted({*facts.offline, *facts.under_replicated})
        if in_sync and lacking:
            some = ", ".join(f"{topic}-{index}" for topic, index in lacking[:SHOWN])
            more = ", ..." if len(lacking) > SHOWN else ""
            raise CommandFailed(f"{len(lacking)} partitions lack a replica or are offline ({some}{more})")

    while True:
        try:
            options.run(look)
            break
        except CommandFailed as failure:
            if time.monotonic() > deadline:
                raise CommandFailed(f"not ready after {timeout_s:g} s: {failure}") from failure
        time.sleep(LOOK_EVERY_S)
    if as_json:
        show_json({"brokers": up})
    else:
        show_line(f"{len(up)} broker{'' if len(up) == 1 else 's'} up")


def stop(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="The broker's data directory (./kpybroker-data).")
    ] = DEV_DATA_DIR,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Stop a broker that `dev --detach` started, and wait until it has ended."""
    from kpybroker.cli import detaching

    failure = detaching.stop(data_dir, options.timeout_ms() / 1000)
    if failure is not None:
        raise CommandFailed(failure)
    if as_json:
        show_json({"stopped": str(data_dir.absolute())})
    else:
        show_line(f"stopped the broker on {data_dir.absolute()}")
