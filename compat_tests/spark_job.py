"""The program that test_spark_killed.py kills: streams a topic's numbers to Parquet, then prints a summary of the
Parquet files.

    python spark_job.py BOOTSTRAP TOPIC DIRECTORY

Prints the position after each batch, and at the end "holds COUNT DISTINCT SUM".
"""

import sys
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.spark import QUICK_JVM, session
from spark_examples.flights_stream import print_position


def main(bootstrap: str, topic: str, directory: Path) -> None:
    spark = session(bootstrap, settings=QUICK_JVM)
    kafka = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**kafka, maxOffsetsPerTrigger="10000").load()
    query = (
        records.select(F.col("value").cast("string").cast("long").alias("number"))
        .writeStream.format("parquet")
        .options(path=str(directory / "out"), checkpointLocation=str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    while not query.awaitTermination(0.1):
        print_position(query)
    out = spark.read.parquet(str(directory / "out"))
    print("holds", *out.agg(F.count("number"), F.count_distinct("number"), F.sum("number")).first())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
