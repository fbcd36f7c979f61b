"""`kpybroker cluster`: facts about a cluster, and whether kpybroker could serve it."""

from __future__ import annotations

import typer

from kpybroker.cli import cluster_check, options, status
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.paging import progress
from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.client.client import Client

app = typer.Typer(
    name="cluster",
    cls=CommandGroup,
    invoke_without_command=True,
    help="Show the cluster's id, controller, voters, features and partitions.",
)


@app.callback()
def cluster(
    context: typer.Context,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Show the cluster's id, controller, voters, features and partitions."""
    if context.invoked_subcommand is not None:
        return

    async def show(client: Client) -> None:
        screen = await status.look(client, with_groups=False)
        if as_json:
            facts = status.facts_of(screen)
            show_json({name: facts[name] for name in ("cluster", "controller", "features", "partitions", "unknown")})
        else:
            status.show_cluster(screen)

    options.run(show)


app.command("status")(status.status)


@app.command()
def check(bootstrap: options.Bootstrap = None, timeout: options.Timeout = None, as_json: options.Json = False) -> None:
    """Ask a running cluster, of kpybroker or Apache Kafka, what kpybroker would not serve of it: features, settings of
    brokers and topics, APIs, formats of messages, groups. Exits with 1 if something prevents it."""
    found: list[cluster_check.Checked] = []

    async def look(client: Client) -> None:
        with progress("reading the first batch of each log") as tell:
            found.append(await cluster_check.look(client, tell))

    options.run(look)
    [checked] = found
    if as_json:
        show_json([finding._asdict() for finding in checked.findings])
    elif checked.findings:
        show_table(("LEVEL", "WHERE", "WHAT", "WHY"), checked.findings, folds=3)
    if not as_json:
        counts = {"broker": checked.brokers, "topic": checked.topics, "group": checked.groups}
        seen = ", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items())
        if not checked.is_prevented:
            found_nothing = "nothing that was found" if checked.findings else "nothing"
            show_line(f"{seen}: {found_nothing} prevents kpybroker from serving them")
        for level in dict.fromkeys(finding.level for finding in checked.findings):
            remark(f"{level}: {cluster_check.LEVELS[level]}")
        remark(cluster_check.CANNOT_KNOW)
    if checked.is_prevented:
        raise typer.Exit(1)
