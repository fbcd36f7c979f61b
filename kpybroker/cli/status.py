"""`kpybroker status` and `brokers`: show the cluster on one screen, and unregister brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, TypeVar

import typer

from kpybroker.cli import cluster_facts, options
from kpybroker.cli.cluster_facts import NodeFacts, PartitionFacts, QuorumFacts
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.group_lag import Overview, overviews
from kpybroker.cli.show import Cell, show_json, show_line, show_size, show_table
from kpybroker.client.client import Client, CommandFailed, check
from kpybroker.client.session import refusal_text
from kpybroker.errors import KafkaError, MalformedFrame
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import unregister_broker

PARTITIONS_SHOWN = 8
GROUPS_SHOWN = 12
PATIENCE_S_MAX = 5.0
"""Timeout of each part of the screen. Parts without a response are listed as unknown."""

T = TypeVar("T")
brokers_app = typer.Typer(
    name="brokers", cls=CommandGroup, help="List the brokers of the cluster, or unregister one.", no_args_is_help=True
)


@dataclass(slots=True)
class Screen:
    """All parts of the screen. A part without a response is None, and `unknown` has the reason."""

    cluster: str | None = None
    nodes: list[NodeFacts] | None = None
    quorum: QuorumFacts | None = None
    features: dict[str, int] | None = None
    partitions: PartitionFacts | None = None
    groups: list[Overview] | None = None
    unknown: dict[str, str] = field(default_factory=dict)

    async def part(self, name: str, asking: Awaitable[T]) -> T | None:
        """The result of `asking`, or None, with the reason in `unknown`."""
        try:
            return await asking
        except KafkaError as refusal:
            self.unknown[name] = refusal_text(refusal)
        except TimeoutError:
            self.unknown[name] = "no response in time"
        except (OSError, MalformedFrame) as error:
            self.unknown[name] = str(error) or type(error).__name__
        except CommandFailed as failure:
            self.unknown[name] = str(failure)
        return None


async def look(client: Client, *, with_groups: bool) -> Screen:
    """Query all parts, one after another."""
    screen = Screen()
    client.limit_timeout(int(1000 * PATIENCE_S_MAX))
    screen.nodes = await screen.part("nodes", cluster_facts.nodes(client))
    screen.cluster = client.cluster_id
    screen.features = await screen.part("features", cluster_facts.features(client))
    topics = await screen.part("partitions", client.metadata())
    if topics is not None:
        screen.partitions = cluster_facts.count_partitions(topics.values(), screen.nodes or [])
    for node in screen.nodes or []:
        if not node.is_fenced:
            await cluster_facts.learn_of(client, node)
            if screen.partitions is not None and node.disks is not None:
                logs = cluster_facts.add_offline_logs(client, node.node_id, screen.partitions)
                await screen.part(f"logs of node {node.node_id}", logs)
    if with_groups:
        screen.groups = await screen.part("groups", overviews(client))
    screen.quorum = await screen.part("controller", cluster_facts.quorum(client))
    return screen


def status(bootstrap: options.Bootstrap = None, timeout: options.Timeout = None, as_json: options.Json = False) -> None:
    """Show the cluster on one screen: nodes, controller, under-replicated partitions, disks, groups with lag."""

    async def show(client: Client) -> None:
        screen = await look(client, with_groups=True)
        if as_json:
            show_json(facts_of(screen))
            return
        show_cluster(screen)
        show_line("")
        _show_nodes(screen.nodes or [], screen.quorum)
        if screen.groups:
            show_line("")
            _show_groups(screen.groups)

    options.run(show)


@brokers_app.command("list")
def list_(bootstrap: options.Bootstrap = None, timeout: options.Timeout = None, as_json: options.Json = False) -> None:
    """List the brokers with address, state, number of leaders and replicas, disk usage and HTTP address."""

    async def show(client: Client) -> None:
        screen = await look(client, with_groups=False)
        if screen.nodes is None:
            raise CommandFailed(f"the brokers cannot be listed: {screen.unknown['nodes']}")
        if as_json:
            show_json([asdict(node) for node in screen.nodes])
        else:
            _show_nodes(screen.nodes, screen.quorum)

    options.run(show)


@brokers_app.command()
def unregister(
    broker: Annotated[int, typer.Argument(metavar="ID", min=0, help="The broker's node.id.")],
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Unregister a broker that is stopped for good. Move its replicas away first."""

    async def forget(client: Client) -> None:
        nodes = {node.node_id: node for node in await cluster_facts.nodes(client)}
        if broker not in nodes:
            raise CommandFailed(f"there is no broker {broker}; the brokers are {', '.join(map(str, nodes))}")
        facts = await client.metadata()
        held = cluster_facts.count_partitions(facts.values(), [nodes[broker]])
        if nodes[broker].replicas:
            others = ",".join(str(each) for each in nodes if each != broker)
            raise CommandFailed(
                f"broker {broker} has {nodes[broker].replicas} of {held.count} partitions' replicas; move them with "
                f"`kpybroker reassign start --all-topics --brokers {others} --execute --wait`"
            )
        if not nodes[broker].is_fenced:
            raise CommandFailed(f"broker {broker} is running, and would register again; stop it first")
        response = await client.ask("UnregisterBroker", unregister_broker.Request(broker_id=broker))
        check(response.error_code, response.error_message)
        if as_json:
            show_json({"broker": broker, "unregistered": True})
        else:
            show_line(f"unregistered broker {broker}")

    options.run(forget)


def show_cluster(screen: Screen) -> None:
    facts = [("cluster", screen.cluster or "-")]
    if screen.quorum is not None:
        facts.append(("controller", _controller(screen.quorum)))
    if screen.partitions is not None:
        facts.append(("partitions", _partitions(screen.partitions)))
    if screen.features is not None:
        facts.append(("features", ", ".join(f"{name}={level}" for name, level in screen.features.items()) or "none"))
    facts += [(name, f"unknown: {why}") for name, why in screen.unknown.items()]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        show_line(f"{name:<{width}}  {value}")


def _controller(quorum: QuorumFacts) -> str:
    if quorum.leader < 0:
        return f"none is elected; voters {', '.join(map(str, quorum.behind))}"
    shown = [f"{voter} ({behind:,} behind)" if behind else str(voter) for voter, behind in quorum.behind.items()]
    return f"node {quorum.leader} in epoch {quorum.epoch}; voters {', '.join(shown)}"


def _partitions(partitions: PartitionFacts) -> str:
    shown = f"{partitions.count:,} in {partitions.topics:,} topic{'' if partitions.topics == 1 else 's'}"
    lacking = [
        f"{len(places):,} {what} ({_some(places)})"
        for what, places in (("under-replicated", partitions.under_replicated), ("offline", partitions.offline))
        if places
    ]
    return f"{shown}; {', '.join(lacking) or 'all replicas in sync'}"


def _some(places: Sequence[TopicPartition]) -> str:
    shown = ", ".join(f"{topic}-{index}" for topic, index in places[:PARTITIONS_SHOWN])
    return shown + (", ..." if len(places) > PARTITIONS_SHOWN else "")


def _show_nodes(nodes: Sequence[NodeFacts], quorum: QuorumFacts | None) -> None:
    """Print two tables, because one would be too wide for a terminal of 80 columns."""
    about: list[tuple[Cell, ...]] = []
    content: list[tuple[Cell, ...]] = []
    for node in nodes:
        disks = [disk for disk in node.disks or [] if not disk.has_failed]
        failed = len(node.disks or []) - len(disks)
        state = "fenced" if node.is_fenced else "no answer" if node.disks is None else "up"
        used = show_size(sum(disk.used_bytes for disk in disks)) if disks else None
        free = show_size(min(disk.free_bytes for disk in disks)) if disks else None
        state += f", {failed} failed disk{'' if failed == 1 else 's'}" if failed else ""
        about.append((node.node_id, f"{node.host}:{node.port}", _kind(node), ", ".join(roles_of(node, quorum)), state))
        content.append((node.node_id, node.leads, node.replicas, node.in_sync, used, free, node.http))
    for node_id, address in cluster_facts.controllers_of(nodes, quorum).items():
        about.append((node_id, address, "unknown", cluster_facts.CONTROLLER_ROLE, "unknown"))
    show_table(("NODE", "ADDRESS", "KIND", "ROLES", "STATE"), about)
    show_line("")
    show_table(("NODE", "LEADS", "REPLICAS", "IN SYNC", "DATA", "FREE", "HTTP"), content)


def _kind(node: NodeFacts) -> str:
    """The kind and the release of Apache Kafka to which the node belongs, or whose features and APIs it has."""
    if node.kind is None or node.release is None:
        return node.kind or "unknown"
    return (
        f"{node.kind} {node.release}" if node.kind == cluster_facts.APACHE_KAFKA else f"{node.kind} (as {node.release})"
    )


def roles_of(node: NodeFacts, quorum: QuorumFacts | None) -> list[str]:
    """The roles of a broker. If it does not respond, it is known to be a controller only if it is a voter."""
    if node.roles is not None:
        return node.roles
    is_voter = quorum is not None and node.node_id in quorum.behind
    return [cluster_facts.BROKER_ROLE, *([cluster_facts.CONTROLLER_ROLE] if is_voter else [])]


def _show_groups(groups: Sequence[Overview]) -> None:
    """Print the groups with the most lag first."""
    ordered = sorted(groups, key=lambda each: (-(each.lag or 0), each.group))
    rows = [(each.group, each.state, each.members, each.lag) for each in ordered[:GROUPS_SHOWN]]
    show_table(("GROUP", "STATE", "MEMBERS", "LAG"), rows)
    if len(ordered) > GROUPS_SHOWN:
        show_line(f"... and {len(ordered) - GROUPS_SHOWN} more: `kpybroker groups list`")


def facts_of(screen: Screen) -> dict[str, Any]:
    quorum, partitions = screen.quorum, screen.partitions
    return {
        "cluster": screen.cluster,
        "controller": None
        if quorum is None
        else {
            "node": quorum.leader if quorum.leader >= 0 else None,
            "epoch": quorum.epoch,
            "voters": [{"node": voter, "behind": behind} for voter, behind in quorum.behind.items()],
            "observers": quorum.observers,
        },
        "features": screen.features,
        "partitions": None
        if partitions is None
        else {
            "topics": partitions.topics,
            "partitions": partitions.count,
            "under_replicated": [f"{topic}-{index}" for topic, index in partitions.under_replicated],
            "offline": [f"{topic}-{index}" for topic, index in partitions.offline],
        },
        "nodes": None
        if screen.nodes is None
        else [{**asdict(node), "roles": roles_of(node, quorum)} for node in screen.nodes],
        "other_controllers": [
            {"node": node_id, "address": address}
            for node_id, address in cluster_facts.controllers_of(screen.nodes or [], quorum).items()
        ],
        "groups": None if screen.groups is None else [each.facts for each in screen.groups],
        "unknown": screen.unknown,
    }
