"""`kpybroker features`: list and change the finalized levels of a cluster's features (KIP-584)."""

from __future__ import annotations

from typing import Annotated

import typer

from kpybroker.cli import cluster_facts, options
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.show import show_json, show_line, show_table
from kpybroker.client.client import Client, check
from kpybroker.errors import ConfigError
from kpybroker.wire.rpc import update_features

UPGRADE, SAFE_DOWNGRADE = 1, 2

app = typer.Typer(
    name="features", cls=CommandGroup, help="List and set the levels of the cluster's features.", no_args_is_help=True
)


@app.command("list")
def list_(bootstrap: options.Bootstrap = None, timeout: options.Timeout = None, as_json: options.Json = False) -> None:
    """List features with the levels that the broker supports, and the finalized level."""

    async def show(client: Client) -> None:
        told = await cluster_facts.api_versions_of(client)
        levels = {row.name: row.max_version_level for row in told.finalized_features}
        rows = [
            (row.name, row.min_version, row.max_version, levels.get(row.name, 0))
            for row in sorted(told.supported_features, key=lambda row: row.name)
        ]
        if as_json:
            show_json([dict(zip(("feature", "min", "max", "level"), row, strict=True)) for row in rows])
        else:
            show_table(("FEATURE", "MIN", "MAX", "LEVEL"), rows)

    options.run(show)


@app.command("set")
def set_(
    levels: Annotated[list[str], typer.Argument(metavar="NAME=LEVEL", help="Levels, such as share.version=1.")],
    downgrade: Annotated[
        bool, options.flag("--downgrade", "Allow lower levels, which may disable features that are in use.")
    ] = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Finalize levels of features, either all or none."""
    wanted = [_parsed(text) for text in levels]

    async def change(client: Client) -> None:
        now = await cluster_facts.features(client)
        updates = [
            update_features.FeatureUpdateKey(
                feature=name,
                max_version_level=level,
                upgrade_type=SAFE_DOWNGRADE if downgrade and level < now.get(name, 0) else UPGRADE,
            )
            for name, level in wanted
        ]

        async def attempt() -> None:
            told = await client.ask("UpdateFeatures", update_features.Request(feature_updates=updates))
            check(told.error_code, told.error_message)

        await client.patiently(attempt)
        if as_json:
            show_json([{"feature": name, "level": level} for name, level in wanted])
            return
        for name, level in wanted:
            show_line(f"{name} is {level}")

    options.run(change)


def _parsed(text: str) -> tuple[str, int]:
    name, level = options.parse_pair(text, "level")
    if not (level.isascii() and level.isdecimal() and int(level[:6]) < 1 << 15):
        raise ConfigError(f"cannot read the level {text}: write NAME=LEVEL, such as share.version=1")
    return name, int(level)
