"""`kpybroker topics`: create, list, describe, delete and alter topics."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from kpybroker.cli import configs, options, trimming
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.cli.times import parse_span
from kpybroker.client.client import EARLIEST, LATEST, Client, CommandFailed, check
from kpybroker.config.partition_keys import GRACE, IN_USE
from kpybroker.config.view_keys import VIEW_OF, VIEW_WHERE
from kpybroker.errors import ConfigError, ErrorCode, KafkaError
from kpybroker.metadata.retirements import retired_name
from kpybroker.similar_names import nearest_name
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import (
    create_partitions,
    create_topics,
    delete_topics,
)
from kpybroker.wire.rpc.incremental_alter_configs import AlterableConfig
from kpybroker.wire.rpc.metadata import MetadataResponseTopic

PARTITIONS_MAX = 100_000
REPLICATION_MAX = 1000

app = typer.Typer(
    name="topics", cls=CommandGroup, help="Create, list, describe, delete, alter and trim topics.", no_args_is_help=True
)
Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="One or more names.")]
Factor = Annotated[
    int | None,
    typer.Option(
        "--replication-factor",
        metavar="N",
        min=1,
        max=REPLICATION_MAX,
        hidden=True,
        help="Same as --replication; the name that Kafka's tools use.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting by Kafka's name: retention.ms=60000; may be repeated."),
]

Partitions = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        metavar="N",
        min=1,
        max=PARTITIONS_MAX,
        help="Number of partitions (the broker's num.partitions).",
    ),
]
ViewOf = Annotated[
    str | None,
    typer.Option(
        "--view-of", metavar="SOURCE", help="Create a view: a read-only topic with the records of SOURCE that match."
    ),
]
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="EXPRESSION", help="What a view shows, such as 'header.region == \"eu\"'."),
]


@app.command()
def create(
    names: Names,
    partitions: Partitions = None,
    replication: Annotated[
        int | None,
        typer.Option(
            "--replication",
            metavar="N",
            min=1,
            max=REPLICATION_MAX,
            help="Number of replicas (the broker's default.replication.factor).",
        ),
    ] = None,
    replication_factor: Factor = None,
    settings: Settings = None,
    view_of: ViewOf = None,
    where: Where = None,
    if_not_exists: Annotated[bool, options.flag("--if-not-exists", "Do not fail if a topic already exists.")] = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Create one topic, or several topics with the same settings; or a view of a topic."""
    factor = _one_factor(replication, replication_factor)
    given = [create_topics.CreatableTopicConfig(name=name, value=value) for name, value in _settings(settings)]
    given += _of_view(view_of, where)
    wanted = [
        create_topics.CreatableTopic(
            name=name, num_partitions=partitions or -1, replication_factor=factor, configs=given
        )
        for name in names
    ]

    async def make(client: Client) -> None:
        created: list[dict[str, Any]] = []

        async def attempt() -> None:
            left = [topic for topic in wanted if topic.name not in {row["topic"] for row in created}]
            request = create_topics.Request(topics=left, timeout_ms=client.timeout_ms)
            for row in (await client.ask("CreateTopics", request)).topics:
                exists = row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
                if not (exists and if_not_exists):
                    check(row.error_code, row.error_message or row.name)
                created.append({"topic": row.name, "created": not exists, **_size_of(row)})

        await client.patiently(attempt, resend=False)
        if as_json:
            show_json(created)
            return
        for row in created:
            show_line(f"created {row['topic']}" if row["created"] else f"{row['topic']} already exists")

    options.run(make)


def _of_view(source: str | None, where: str | None) -> list[create_topics.CreatableTopicConfig]:
    """The settings of a view; empty for a topic. Raises ConfigError."""
    if source is None and where is None:
        return []
    if source is None or where is None:
        raise ConfigError("a view needs both --view-of SOURCE and --where EXPRESSION")
    given = {VIEW_OF: source, VIEW_WHERE: where}
    return [create_topics.CreatableTopicConfig(name=name, value=value) for name, value in given.items()]


def _one_factor(replication: int | None, replication_factor: int | None) -> int:
    """The number of replicas, -1 for the broker's default. Raises ConfigError."""
    if None not in (replication, replication_factor):
        raise ConfigError("--replication and --replication-factor are the same option; give one of them")
    return replication or replication_factor or -1


def _settings(texts: list[str] | None) -> list[tuple[str, str]]:
    return [options.parse_pair(text, "setting") for text in texts or []]


def _size_of(row: create_topics.CreatableTopicResult) -> dict[str, int]:
    return {"partitions": row.num_partitions, "replication": row.replication_factor} if row.num_partitions > 0 else {}


@app.command("list")
def list_(
    internal: Annotated[
        bool, options.flag("--internal", "Also list internal topics, such as __consumer_offsets.")
    ] = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """List topics with their partitions and records."""

    async def show(client: Client) -> None:
        found = await client.metadata()
        topics = [found[name] for name in sorted(found) if internal or not found[name].is_internal]
        records = await _records_of(client, topics)
        rows = [(topic.name or "", len(topic.partitions), _replication(topic), records[topic.name]) for topic in topics]
        if as_json:
            names = ("topic", "partitions", "replication", "records")
            show_json([dict(zip(names, row, strict=True)) for row in rows])
        elif rows:
            show_table(("TOPIC", "PARTITIONS", "REPLICATION", "RECORDS"), rows)
        else:
            remark("no topics; create one with `kpybroker topics create NAME`")

    options.run(show)


def _replication(topic: MetadataResponseTopic) -> int:
    return len(topic.partitions[0].replica_nodes) if topic.partitions else 0


async def _records_of(client: Client, topics: Sequence[MetadataResponseTopic]) -> dict[str | None, int | None]:
    """The number of offsets between start and end of all partitions, by topic; None if a partition has no leader or is
    offline."""
    counted: dict[str | None, int | None] = {}
    asked = [topic for topic in topics if not any(row.error_code for row in topic.partitions)]
    places = [(topic.name or "", row.partition_index) for topic in asked for row in topic.partitions]
    offline: dict[TopicPartition, str] = {}
    starts = await client.list_offsets(dict.fromkeys(places, EARLIEST), offline=offline)
    ends = await client.list_offsets(dict.fromkeys(places, LATEST), offline=offline)
    unknown = {topic for topic, _ in offline}
    for reason in sorted(set(offline.values())):
        places_told = ", ".join(f"{topic}-{index}" for (topic, index), why in offline.items() if why == reason)
        remark(f"cannot count the records of {places_told}: {reason}")
    for topic in topics:
        counted[topic.name] = None if topic not in asked or topic.name in unknown else 0
    for place in places:
        if place[0] not in unknown:
            counted[place[0]] = (counted[place[0]] or 0) + ends[place] - starts[place]
    return counted


@app.command()
def describe(
    names: Names,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Show partitions with leaders and offsets, and the settings of topics."""

    async def show(client: Client) -> None:
        found = await client.existing(names)
        described = [await _describe(client, found[name]) for name in dict.fromkeys(names)]
        if as_json:
            show_json(described)
            return
        for at, topic in enumerate(described):
            if at:
                show_line("")
            _show_topic(topic)

    options.run(show)


async def _describe(client: Client, topic: MetadataResponseTopic) -> dict[str, Any]:
    name = topic.name or ""
    places = [(name, row.partition_index) for row in topic.partitions if not row.error_code]  # partitions with a leader
    offline: dict[TopicPartition, str] = {}
    starts = await client.list_offsets(dict.fromkeys(places, EARLIEST), offline=offline)
    ends = await client.list_offsets(dict.fromkeys(places, LATEST), offline=offline)
    return {
        "topic": name,
        "id": base64.urlsafe_b64encode(topic.topic_id).rstrip(b"=").decode(),
        "internal": topic.is_internal,
        "settings": await _settings_of(client, name),
        "partitions": [
            {
                "partition": row.partition_index,
                "leader": row.leader_id if row.leader_id >= 0 else None,
                "leader_epoch": row.leader_epoch,
                "replicas": row.replica_nodes,
                "isr": row.isr_nodes,
                "start": starts.get((name, row.partition_index)),
                "end": ends.get((name, row.partition_index)),
                "offline": "no replica can lead it" if row.leader_id < 0 else offline.get((name, row.partition_index)),
            }
            for row in sorted(topic.partitions, key=lambda row: row.partition_index)
        ],
    }


async def _settings_of(client: Client, name: str) -> dict[str, str | None]:
    rows = await configs.described(client, configs.Resource(configs.TOPIC, name), None)
    return {row.name: row.value for row in rows if row.config_source in configs.OWN[configs.TOPIC]}


def _show_topic(topic: dict[str, Any]) -> None:
    rows = [
        (
            row["partition"],
            row["leader"],
            ",".join(map(str, row["replicas"])),
            ",".join(map(str, row["isr"])),
            row["start"],
            row["end"],
            None if None in (row["start"], row["end"]) else row["end"] - row["start"],
        )
        for row in topic["partitions"]
    ]
    show_table(("PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "RECORDS"), rows, title=topic["topic"])
    for row in topic["partitions"]:
        if row["offline"] and row["leader"] is not None:
            show_line(f"partition {row['partition']} is offline: {row['offline']}")
    for name, value in sorted(topic["settings"].items()):
        show_line(f"{name}={value}")


@app.command()
def delete(
    names: Names,
    if_exists: Annotated[bool, options.flag("--if-exists", "Do not fail if a topic does not exist.")] = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Delete topics and their records."""

    async def remove(client: Client) -> None:
        known = await client.metadata()
        wanted = [name for name in dict.fromkeys(names) if name in known]
        if not if_exists:
            missing = [name for name in dict.fromkeys(names) if name not in known]
            if missing:
                raise CommandFailed(_not_there(missing, known))
        gone: list[str] = []
        request = delete_topics.Request(
            topics=[delete_topics.DeleteTopicState(name=name) for name in wanted],
            topic_names=wanted,
            timeout_ms=client.timeout_ms,
        )
        for row in (await client.ask("DeleteTopics", request)).responses if wanted else []:
            if not (if_exists and row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                check(row.error_code, row.error_message or row.name)
            gone.append(row.name)
        if as_json:
            show_json([{"topic": name, "deleted": name in gone} for name in names])
            return
        for name in gone:
            show_line(f"deleted {name}")

    options.run(remove)


def _not_there(missing: Sequence[str], known: Iterable[str]) -> str:
    near = nearest_name(missing[0], known)
    meant = "" if near is None else f"did you mean {near}? "
    return f"there is no topic {', '.join(missing)}, so nothing was deleted; {meant}--if-exists ignores missing topics"


@app.command()
def alter(
    name: options.TopicName,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            metavar="N",
            min=1,
            max=PARTITIONS_MAX,
            help="The new number of partitions. If it is lower, the last ones are retired: their records are in the "
            "topic TOPIC.retired until retention has deleted them.",
        ),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            metavar="TIME",
            help="For how long retired partitions still accept records, from producers that do not know it yet: "
            "30s, 1h (default: 10m).",
        ),
    ] = None,
    settings: Settings = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="A setting to reset to the broker's value; may be repeated."),
    ] = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Change the number of partitions of a topic, or its settings."""
    given = [*_settings(settings), *([] if grace is None else [(GRACE, str(parse_span(grace)))])]
    changes = [AlterableConfig(name=key, config_operation=configs.SET, value=value) for key, value in given]
    changes += [AlterableConfig(name=key, config_operation=configs.DELETE, value=None) for key in unset or []]
    if partitions is None and not changes:
        raise ConfigError("nothing to alter: give --partitions, --grace, --set or --unset")

    async def change(client: Client) -> None:
        before = len((await client.existing([name]))[name].partitions)
        fewer = partitions is not None and partitions < before
        if fewer:
            changes.append(AlterableConfig(name=IN_USE, config_operation=configs.SET, value=str(partitions)))
        if changes:
            await configs.alter(client, configs.Resource(configs.TOPIC, name), changes)
        if partitions is not None and not fewer:
            await _add_partitions(client, name, partitions)
        if as_json:
            count = before if partitions is None else partitions
            show_json({"topic": name, "partitions": count, "settings": await _settings_of(client, name)})
            return
        show_line(f"altered {name}")
        if fewer:
            remark(
                f"the records of the retired partitions are in {retired_name(name)}, until retention has deleted them"
            )

    options.run(change)


async def _add_partitions(client: Client, name: str, count: int) -> None:
    topic = create_partitions.CreatePartitionsTopic(name=name, count=count, assignments=None)
    response = await client.ask(
        "CreatePartitions", create_partitions.Request(topics=[topic], timeout_ms=client.timeout_ms)
    )
    for row in response.results:
        if row.error_code == ErrorCode.INVALID_PARTITIONS:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, row.error_message or f"{name} cannot have {count} partitions"
            )
        check(row.error_code, row.error_message)


app.command()(trimming.trim)
