"""Applies a database's change events to a Parquet table. Repeated changes, and repeated runs, have no effect.

    python -m spark_examples.cdc_upsert [--bootstrap 127.0.0.1:9092] [--command-config FILE] [--workdir DIR]

A change has the operation (c, u, d), the row after it, and its position in the database's log. For each id, the table
keeps the row with the highest position, even if it is deleted, so that an older change that is read again is ignored.
Each batch writes a new version of the table, and then writes the number of this version to the file CURRENT. If a batch
is killed, the old version stays current.
"""

import json
import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.spark import QUICK_JVM, Cluster, checkpoint, session
from spark_examples.feeding import Record, create_topics, send
from spark_examples.running import command_line

SEED = 2013
CHANGES = 6_000
CUSTOMERS = 500
ROW = "id long, name string, city string, points long"
CHANGE = f"op string, position long, id long, after struct<{ROW}>"
TABLE = f"id long, position long, op string, after struct<{ROW}>"
CITIES = ["Graz", "Linz", "Wien", "Zürich"]


def main(cluster: Cluster, workdir: Path) -> pd.DataFrame:
    """Send half of the changes and apply them, send and apply the rest, then apply all again without a checkpoint.
    Returns the table's rows."""
    spark = session(cluster, settings=QUICK_JVM)
    topic = f"customers-{uuid.uuid4().hex[:6]}"
    create_topics(cluster, topic)
    everything = list(changes())
    table = workdir / "customers"
    for half in everything[: CHANGES // 2], everything[CHANGES // 2 :]:
        send(cluster, topic, half)
        fold(spark, cluster, topic, table, workdir / "checkpoint")
    before = rows_of(spark, table)
    fold(spark, cluster, topic, table, workdir / "checkpoint-of-the-replay")
    after = rows_of(spark, table)
    print(f"{len(after):,} customers; the replay changed {'nothing' if after.equals(before) else 'the table'}")
    return after


def fold(spark: SparkSession, cluster: Cluster, topic: str, table: Path, folder: Path) -> None:
    """Merge the changes since the checkpoint in `folder` into the table."""
    kafka = {**cluster.spark_options(), "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**kafka, maxOffsetsPerTrigger="1000").load()
    change = F.from_json(F.col("value").cast("string"), CHANGE)
    query = (
        records.select(change.alias("change"))
        .select("change.*")
        .writeStream.foreachBatch(lambda batch, _: merge(batch, table))
        .option("checkpointLocation", checkpoint(folder, cluster, topic))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def merge(batch: DataFrame, table: Path) -> None:
    """Write the next version of the table: for each id, the row with the highest position in the table and the
    batch."""
    spark = batch.sparkSession
    version = current(table)
    old = spark.read.schema(TABLE).parquet(str(table / f"v{version}")) if version else spark.createDataFrame([], TABLE)
    newest = (
        old.unionByName(batch)
        .groupBy("id")
        .agg(F.max_by(F.struct("position", "op", "after"), "position").alias("row"))
        .select("id", "row.*")
    )
    newest.write.mode("overwrite").parquet(str(table / f"v{version + 1}"))
    pointer = table / "CURRENT.new"
    pointer.write_text(str(version + 1))
    os.replace(pointer, table / "CURRENT")


def current(table: Path) -> int:
    """The number of the current version; 0 if there is none yet."""
    pointer = table / "CURRENT"
    return int(pointer.read_text()) if pointer.exists() else 0


def rows_of(spark: SparkSession, table: Path) -> pd.DataFrame:
    """The rows that a query sees: ROW of all ids that are not deleted."""
    rows = spark.read.parquet(str(table / f"v{current(table)}")).where("op != 'd'").select("after.*")
    return rows.orderBy("id").toPandas()


def changes() -> Iterator[Record]:
    """CHANGES records with the customer's id as key, the same in every run. One in twenty is sent again later."""
    chance = random.Random(SEED)
    living: dict[int, dict[str, object]] = {}
    sent: list[Record] = []
    for position in range(CHANGES):
        if sent and chance.random() < 0.05:
            yield chance.choice(sent)
            continue
        customer = chance.randrange(CUSTOMERS)
        op = ("d" if chance.random() < 0.3 else "u") if customer in living else "c"
        row: dict[str, object] | None = {"id": customer, "name": f"n{customer}", "city": chance.choice(CITIES)}
        if op == "d":
            row = None
            del living[customer]
        else:
            assert row is not None
            row["points"] = chance.randrange(10_000)
            living[customer] = row
        value = json.dumps({"op": op, "position": position, "id": customer, "after": row})
        sent.append(Record(value, key=str(customer)))
        yield sent[-1]


if __name__ == "__main__":
    command_line(main, __doc__)
