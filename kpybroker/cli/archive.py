"""`kpybroker archive`: copy topics to Parquet files with Spark, verify the copy, and write it back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kpybroker.cli import options
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.cli.times import parse_time
from kpybroker.client.client import CommandFailed
from kpybroker.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kpybroker.archive.manifest import Span
    from kpybroker.spark import Cluster

ISOLATIONS = ("read_committed", "read_uncommitted")


class CopyByDefault(CommandGroup):
    """Treats `archive TOPIC...` as `archive copy TOPIC...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["copy", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="archive",
    cls=CopyByDefault,
    help="Copy topics to Parquet files with Spark, verify the copy, write it back. `archive TOPIC... --to URI` copies.",
    no_args_is_help=True,
)
Where = Annotated[str, typer.Argument(metavar="URI", help="The archive's folder: a path, or a URI such as s3a://a/b.")]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="The Spark master (local[2], in this process)."),
]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory of Spark's driver.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting; may be repeated.")
]


class Engine:
    """A Spark session with the given options, started by the first call."""

    def __init__(self, master: str | None, memory: str, conf: list[str] | None) -> None:
        self._master = master
        self._memory = memory
        self._settings = dict(options.parse_pair(text, "setting") for text in conf or [])
        self._session: SparkSession | None = None
        self._log = Path(tempfile.gettempdir()) / f"kpybroker-archive-{os.getpid()}.log"

    def __call__(self) -> SparkSession:
        if self._session is None:
            from kpybroker.spark import session
            from kpybroker.spark.connector import connector
            from kpybroker.spark.prerequisites import spark_version

            ours = connector(spark_version()).get("spark.jars")
            if ours and "spark.jars" in self._settings:
                self._settings["spark.jars"] += f",{ours}"  # the connector's jars, if they are local
            self._session = session(
                self.cluster, master=self._master, memory=self._memory, log=self._log, settings=self._settings
            )
        return self._session

    @property
    def cluster(self) -> Cluster:
        """The cluster that the options name."""
        from kpybroker.spark import Cluster

        return Cluster(options.bootstrap(), options.command_config())

    @contextmanager
    def working(self) -> Iterator[None]:
        """Stop the session at the end. After a failure, keep Spark's log and name it in the error."""
        from kpybroker.spark.prerequisites import spark_version

        spark_version()
        try:
            yield
        except CommandFailed as failure:
            if self._log.exists():
                raise CommandFailed(f"{failure} (Spark's log: {self._log})") from failure
            raise
        else:
            self._log.unlink(missing_ok=True)
        finally:
            if self._session is not None:
                self._session.stop()


@contextmanager
def _bar(what: str, unit: str) -> Iterator[Any]:
    """A progress bar on stderr, if that is a terminal. Yields a function of (done, total)."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@app.command()
def copy(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="One or more names.")],
    to: Annotated[
        str, typer.Option("--to", metavar="URI", help="The archive's folder; it is created if it does not exist.")
    ],
    isolation: Annotated[
        str, typer.Option("--isolation", metavar="LEVEL", help="read_committed or read_uncommitted.")
    ] = "read_committed",
    round_offsets: Annotated[
        int, typer.Option("--round", metavar="N", min=1, help="Offsets to copy and commit in one step.")
    ] = 1_000_000,
    master: Master = None,
    memory: Memory = "1g",
    conf: Conf = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Copy records that are not in the archive yet."""
    if isolation not in ISOLATIONS:
        raise ConfigError(f"--isolation {isolation!r}: write {' or '.join(ISOLATIONS)}")
    engine = Engine(master, memory, conf)
    with engine.working(), _bar("archiving", "offsets") as advance:
        from kpybroker.archive import job

        spans = job.copy(
            engine,
            engine.cluster,
            to,
            topics,
            isolation=isolation,
            round_offsets=round_offsets,
            advance=advance,
            timeout_ms=options.timeout_ms(),
        )
    rows = _by_partition(spans)
    if as_json:
        show_json(rows)
    elif rows:
        show_table([name.upper() for name in rows[0]], [tuple(row.values()) for row in rows])
    else:
        show_line("nothing new: the archive has all records of the topics")
    _check_losses(spans)


def _by_partition(spans: list[tuple[str, Span]]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for topic, span in spans:
        row = rows.setdefault(
            (topic, span.partition),
            {
                "topic": topic,
                "partition": span.partition,
                "from": span.start,
                "to": 0,
                "records": 0,
                "gaps": 0,
                "lost": 0,
            }
            | {"files": 0, "bytes": 0},
        )
        row["to"] = span.end
        row["records"] += span.records
        row["gaps"] += span.gaps
        row["lost"] += span.lost
        row["files"] += len(span.files)
        row["bytes"] += sum(file.size_bytes for file in span.files)
    return [rows[place] for place in sorted(rows)]


def _check_losses(spans: list[tuple[str, Span]]) -> None:
    """Raise CommandFailed if a topic deleted records before they were copied."""
    lost = [f"{name}-{span.partition}: {span.lost_from} to {span.start - 1}" for name, span in spans if span.lost]
    if lost:
        raise CommandFailed(
            f"the archive is up to date, but these offsets were deleted before they were copied: {', '.join(lost)}; "
            "the manifest lists them. Archive more often than retention deletes"
        )


@app.command()
def verify(
    where: Where,
    archive_alone: Annotated[
        bool, options.flag("--archive-alone", "Verify the archive without its topics, which may be deleted.")
    ] = False,
    master: Master = None,
    memory: Memory = "1g",
    conf: Conf = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Check that no offset is missing from both archive and topics, and that no file has changed."""
    engine = Engine(master, memory, conf)
    with engine.working():
        from kpybroker.archive import job

        history, verdict = job.verify(
            engine, engine.cluster, where, with_topics=not archive_alone, timeout_ms=options.timeout_ms()
        )
    rows = _by_partition(list(history.spans()))
    for row in rows:
        row["compared"] = verdict.compared.get((row["topic"], row["partition"]), 0)
    if as_json:
        show_json({"partitions": rows, "faults": verdict.faults, "remarks": verdict.remarks})
    else:
        show_table([name.upper() for name in rows[0]], [tuple(row.values()) for row in rows])
        for line in verdict.remarks:
            remark(line)
        for line in verdict.faults:
            remark(f"FAULT {line}")
    if verdict.faults:
        raise CommandFailed(f"the archive has {len(verdict.faults)} faults; the first: {verdict.faults[0]}")


@app.command()
def replay(
    where: Where,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The archived topic.")],
    into: Annotated[str, typer.Option("--into", metavar="TOPIC", help="The topic to write to, which must exist.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition; may be repeated.")
    ] = None,
    from_offset: Annotated[int | None, typer.Option("--from-offset", metavar="N", help="The first offset.")] = None,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", help="The offset after the last record.")
    ] = None,
    from_time: Annotated[
        str | None, typer.Option("--from-time", metavar="TIME", help="Records from this time on; ISO 8601 or ms.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help="Records before this time; ISO 8601 or ms."),
    ] = None,
    name: Annotated[
        str, typer.Option("--name", metavar="TEXT", help="Name of a separate replay, which writes all records again.")
    ] = "",
    master: Master = None,
    memory: Memory = "1g",
    conf: Conf = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Write archived records back to a topic, in order. A replay that was killed resumes when it is run again."""
    options.check_offset("--from-offset", from_offset)
    options.check_offset("--to-offset", to_offset)
    start_ms = None if from_time is None else parse_time(from_time)
    end_ms = None if to_time is None else parse_time(to_time)
    engine = Engine(master, memory, conf)
    with engine.working(), _bar("replaying", "records") as advance:
        from kpybroker.archive import job
        from kpybroker.archive.replaying import ReplayScope

        wanted = ReplayScope(topic, from_offset, to_offset, start_ms, end_ms, tuple(sorted(set(partition or ()))))
        sent = job.replay(
            engine,
            engine.cluster,
            where,
            wanted,
            into,
            name=name,
            advance=advance,
            timeout_ms=options.timeout_ms(),
        )
    rows = [{"partition": at, "sent": now, "records": of} for at, (now, of) in sent.items()]
    if as_json:
        show_json(rows)
    else:
        show_table([column.upper() for column in rows[0]], [tuple(row.values()) for row in rows])


@app.command()
def clean(
    where: Where,
    master: Master = None,
    memory: Memory = "1g",
    conf: Conf = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
) -> None:
    """Delete files that killed runs left behind; a run in progress is aborted."""
    engine = Engine(master, memory, conf)
    with engine.working():
        from kpybroker.archive import job

        files = job.clean(engine, where)
    show_line(f"deleted {files} files of unfinished runs")
