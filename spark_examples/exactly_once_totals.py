"""Computes sums by account from a transactional topic, which are exact although the stream is killed twice.

    python -m spark_examples.exactly_once_totals [--bootstrap 127.0.0.1:9092] [--command-config FILE] [--workdir DIR]

A third of the producer's transactions are aborted; `kafka.isolation.level=read_committed` skips their records. The
stream runs in a separate process, which is killed with -9 during batches, together with its JVM. The sums are exact
because the checkpoint records the offsets of a batch before it runs, and a batch writes its sums to a folder named
after its number, so that a repeated batch replaces the output of its first run.
"""

import json
import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.spark import QUICK_JVM, Cluster, checkpoint, session
from spark_examples.feeding import create_topics
from spark_examples.running import command_line

SEED = 2013
TRANSACTIONS = 120
IN_EACH = 100
ACCOUNTS = 50
MAX_BATCH = 1_500
KILL_IN_BATCH = [2, 5]
TRANSFER = "account long, cents long"


def main(cluster: Cluster, workdir: Path) -> pd.DataFrame:
    """Send the transactions, run and kill the stream twice, then run it to the end. Returns one row per account:
    account, transfers, cents."""
    topic = f"transfers-{uuid.uuid4().hex[:6]}"
    create_topics(cluster, topic)
    feed(cluster, topic)
    for kill_in in [*KILL_IN_BATCH, None]:
        run_driver(cluster, topic, workdir, kill_in)
    spark = session(cluster, settings=QUICK_JVM)
    sums = spark.read.parquet(str(workdir / "sums")).groupBy("account")
    return sums.agg(F.sum("transfers").alias("transfers"), F.sum("cents").alias("cents")).orderBy("account").toPandas()


def transactions() -> Iterator[tuple[list[tuple[int, int]], bool]]:
    """(account, cents) of each transfer in a transaction, and whether it is committed; the same in every run."""
    chance = random.Random(SEED)
    for number in range(TRANSACTIONS):
        transfers = [(chance.randrange(ACCOUNTS), chance.randint(-10_000, 10_000)) for _ in range(IN_EACH)]
        yield transfers, number % 3 != 1


def feed(cluster: Cluster, topic: str) -> None:
    producer = Producer({**cluster.confluent_settings(), "transactional.id": topic})
    producer.init_transactions(30)
    for transfers, is_committed in transactions():
        producer.begin_transaction()
        for account, cents in transfers:
            producer.produce(topic, json.dumps({"account": account, "cents": cents}), str(account))
        producer.flush(30)  # without a flush, records of an aborted transaction would never be sent
        producer.commit_transaction(30) if is_committed else producer.abort_transaction(30)


def run_driver(cluster: Cluster, topic: str, workdir: Path, kill_in: int | None) -> None:
    """Run the stream in a separate process. Kill it and its JVM in batch `kill_in`, or let it end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "spark_examples.exactly_once_totals", "drive", topic, str(workdir)]
    command += [cluster.bootstrap, *([str(cluster.command_config)] if cluster.command_config else [])]
    with (
        (workdir / "driver.log").open("ab") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, start_new_session=True
        ) as driver,
    ):
        for batch in map(int, driver.stdout or ()):
            if batch == kill_in:
                os.killpg(driver.pid, signal.SIGKILL)
                print(f"killed in batch {batch}")
    if driver.returncode != (0 if kill_in is None else -signal.SIGKILL):
        raise SystemExit(f"the stream ended with {driver.returncode}; see {workdir / 'driver.log'}")


def drive(cluster: Cluster, topic: str, workdir: Path) -> None:
    """Run the stream: sum committed records batch by batch. Prints the number of each batch at its start."""
    spark = session(cluster, settings=QUICK_JVM)
    kafka = {**cluster.spark_options(), "kafka.isolation.level": "read_committed", "subscribe": topic}
    records = (
        spark.readStream.format("kafka")
        .options(**kafka, startingOffsets="earliest", maxOffsetsPerTrigger=str(MAX_BATCH))
        .load()
    )

    def keep(batch: DataFrame, number: int) -> None:
        print(number, flush=True)
        sums = batch.groupBy("account").agg(F.count("*").alias("transfers"), F.sum("cents").alias("cents"))
        sums.write.mode("overwrite").parquet(str(workdir / "sums" / f"batch={number}"))

    query = (
        records.select(F.from_json(F.col("value").cast("string"), TRANSFER).alias("transfer"))
        .select("transfer.*")
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", checkpoint(workdir / "checkpoint", cluster, topic))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    if sys.argv[1:2] == ["drive"]:
        topic, workdir, bootstrap, *command_config = sys.argv[2:]
        drive(Cluster(bootstrap, *map(Path, command_config)), topic, Path(workdir))
    else:
        command_line(main, __doc__)
