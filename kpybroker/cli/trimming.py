"""`kpybroker topics trim`: delete the oldest records of a topic (DeleteRecords)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from kpybroker.cli import cluster_facts, options
from kpybroker.cli.show import remark, show_json, show_table
from kpybroker.cli.times import TIME_HELP, parse_time
from kpybroker.client.client import EARLIEST, LATEST, Client, check
from kpybroker.errors import ConfigError
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import delete_records


def trim(
    name: options.TopicName,
    before_time: Annotated[
        str | None, typer.Option("--before-time", metavar="TIME", help=f"Delete records older than this: {TIME_HELP}.")
    ] = None,
    before_offset: Annotated[
        int | None, typer.Option("--before-offset", metavar="N", min=0, help="Delete records below this offset.")
    ] = None,
    everything: Annotated[bool, options.flag("--everything", "Delete all existing records.")] = False,
    partition: options.Partition = None,
    execute: options.Execute = False,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Delete the oldest records of a topic, permanently. Without --execute, only the plan is shown."""
    options.check_offset("--before-offset", before_offset)
    if (before_time is not None) + (before_offset is not None) + everything != 1:
        raise ConfigError("give exactly one of --before-time TIME, --before-offset N and --everything")
    time_ms = LATEST if before_time is None else parse_time(before_time)

    async def cut(client: Client) -> None:
        found = sorted(row.partition_index for row in (await client.topic(name)).partitions)
        if partition is not None:
            cluster_facts.require_partition(name, partition, found)
        places = [(name, index) for index in (found if partition is None else [partition])]
        starts = await client.list_offsets(dict.fromkeys(places, EARLIEST))
        ends = await client.list_offsets(dict.fromkeys(places, LATEST))
        to = await _new_starts(client, places, time_ms, before_offset, ends)
        wanted = {place: min(max(to[place], starts[place]), ends[place]) for place in places}
        if execute:
            await delete(client, {place: at for place, at in wanted.items() if at > starts[place]})
        rows = [(place[1], starts[place], at, at - starts[place], ends[place] - at) for place, at in wanted.items()]
        names = ("partition", "start", "new_start", "deleted", "left")
        if as_json:
            show_json({"executed": execute, "partitions": [dict(zip(names, row, strict=True)) for row in rows]})
            return
        show_table(("PARTITION", "START", "NEW START", "DELETED", "LEFT"), rows, title=name)
        if not execute:
            remark(options.ONLY_A_PLAN)

    options.run(cut)


async def _new_starts(
    client: Client, places: list[TopicPartition], time_ms: int, offset: int | None, ends: Mapping[TopicPartition, int]
) -> Mapping[TopicPartition, int]:
    if offset is not None:
        return dict.fromkeys(places, offset)
    found = await client.list_offsets(dict.fromkeys(places, time_ms))
    return {place: ends[place] if at < 0 else at for place, at in found.items()}


async def delete(client: Client, offsets: Mapping[TopicPartition, int]) -> None:
    """Delete the records below these offsets. Raises CommandFailed, KafkaError."""
    left = dict(offsets)

    async def attempt() -> None:
        leaders: dict[int, dict[str, list[delete_records.DeleteRecordsPartition]]] = {}
        for name, topic in (await client.topics(sorted({name for name, _ in left}))).items():
            for row in topic.partitions:
                if (name, row.partition_index) in left:
                    asked = delete_records.DeleteRecordsPartition(
                        partition_index=row.partition_index, offset=left[name, row.partition_index]
                    )
                    leaders.setdefault(row.leader_id, {}).setdefault(name, []).append(asked)
        for node, topics in leaders.items():
            request = delete_records.Request(
                topics=[delete_records.DeleteRecordsTopic(name=each, partitions=rows) for each, rows in topics.items()],
                timeout_ms=client.timeout_ms,
            )
            for answered in (await client.ask("DeleteRecords", request, node=node)).topics:
                for row in answered.partitions:
                    check(row.error_code, f"partition {answered.name}-{row.partition_index}")
                    left.pop((answered.name, row.partition_index), None)

    if left:
        await client.patiently(attempt)
