"""A structured stream that reads flights and writes running totals by carrier and day. It may be killed at any time.

    python -m spark_examples.flights_stream --source flights --sink totals --checkpoint DIR --bootstrap 127.0.0.1:9092
        [--command-config FILE]

Reads the source topic in batches of MAX_BATCH records, then ends. The checkpoint contains the position and the sums so
far, so the stream continues when it is started again. Spark's Kafka sink may repeat the batch in which it was killed,
which does no harm: a record contains the total of a carrier's day so far, and the last record of each key is current.
"""

import argparse
import json
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses
from pyspark.sql.streaming import StreamingQuery

from kpybroker.spark import QUICK_JVM, Cluster, session
from spark_examples.flights_table import LATE_MINUTES
from spark_examples.running import add_cluster_options, cluster_in

FLIGHT = "carrier string, year int, month int, day int, dep_delay double, arr_delay double"
COUNTS = "flights long, departed long, landed long, late long"
TOTALS = f"carrier string, day string, {COUNTS}, dep_delay double, arr_delay double"
MAX_BATCH = 70_000


def daily_totals(records: DataFrame) -> DataFrame:
    """Kafka records with flights as JSON -> one row (TOTALS) for each carrier and day. For batches and streams."""
    flight = F.from_json(F.col("value").cast("string"), FLIGHT)
    return (
        records.select(flight.alias("flight"))
        .select("flight.*")
        .groupBy("carrier", F.make_date("year", "month", "day").cast("string").alias("day"))
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.count("arr_delay").alias("landed"),
            F.count_if(F.col("arr_delay") > LATE_MINUTES).alias("late"),
            F.sum("dep_delay").alias("dep_delay"),
            F.sum("arr_delay").alias("arr_delay"),
        )
    )


def as_records(totals: DataFrame) -> DataFrame:
    """Rows of totals -> Kafka records: key "UA 2013-07-04", value JSON."""
    return totals.select(
        F.concat_ws(" ", "carrier", "day").alias("key"),
        F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("value"),
    )


def print_position(query: StreamingQuery) -> None:
    """Print the number of records that the query has read since its checkpoint was created."""
    if query.lastProgress:
        for source in query.lastProgress.sources:
            ends = json.loads(source.endOffset)
            print(sum(sum(partitions.values()) for partitions in ends.values()), flush=True)


def main(cluster: Cluster, source: str, sink: str, checkpoint: Path) -> None:
    spark = session(cluster, settings=QUICK_JVM)
    kafka = cluster.spark_options()
    flights = (
        spark.readStream.format("kafka")
        .options(**kafka, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=str(MAX_BATCH))
        .load()
    )
    query = (
        as_records(daily_totals(flights))
        .writeStream.format("kafka")
        .options(**kafka, topic=sink, checkpointLocation=str(checkpoint))
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
    while not query.awaitTermination(0.3):
        print_position(query)
    print_position(query)
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_cluster_options(parser)
    parser.add_argument("--source", required=True)
    parser.add_argument("--sink", required=True)
    parser.add_argument("--checkpoint", required=True, type=Path)
    given = parser.parse_args()
    cluster = cluster_in(given)
    if cluster is None:
        parser.error("name the cluster: --bootstrap")
    main(cluster, given.source, given.sink, given.checkpoint)
