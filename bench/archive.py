"""`python -m bench.archive`: how fast a topic is archived, and whether the archive is intact after kills with -9.

Fills a topic and archives it in one run. Then archives it into a second folder, with some runs killed at random times,
verifies the second archive and replays it to another topic. Prints the figures of each step.
"""

import json
import random
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.brokers import broker
from oracle.archiver import command, moment, run_until

PARTITIONS = 4
VALUE_BYTES = 100
TOPIC, AGAIN = "measured", "measured-again"


def fill(bootstrap: str, records: int) -> float:
    """Send incompressible records of 100 bytes to the partitions in turn. Returns the seconds it took."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, PARTITIONS) for name in (TOPIC, AGAIN)]).values():
        made.result(30)
    chance = random.Random(records)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    began = time.monotonic()
    for number in range(records):
        value = chance.randbytes(VALUE_BYTES)
        while True:
            try:
                producer.produce(TOPIC, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0
    return time.monotonic() - began


def timed(what: str, records: int, arguments: list[str]) -> Any:
    """Run a command to its end, and print records per second. Returns the JSON that it printed."""
    began = time.monotonic()
    told = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True).stdout
    took_s = time.monotonic() - began
    print(f"{what:<28}{took_s:8.1f} s {records / took_s:12,.0f} records/s")
    return json.loads(told)


def main(
    records: Annotated[int, typer.Option(help="In the topic.")] = 10_000_000,
    kills: Annotated[int, typer.Option(help="Runs that are killed.")] = 5,
    seed: Annotated[int, typer.Option(help="Chooses the moments.")] = 1,
    target: Annotated[str, typer.Option(help="kpybroker or kafka")] = "kpybroker",
    round_offsets: Annotated[int, typer.Option("--round", help="Of `kpybroker archive`.")] = 1_000_000,
) -> None:
    """Run all steps. Fails if any record is lost or duplicated."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-archive-")))
        running = stack.enter_context(broker(target, {}))
        print(f"{target}: filled in {fill(running.bootstrap, records):.0f} s with {records:,} records")

        def archive(*arguments: str) -> list[str]:
            return command(running.bootstrap, *arguments, "--json", "--memory", "2g", quick=False)

        steps = ["--round", str(round_offsets)]
        whole = timed("archive", records, archive(TOPIC, "--to", str(folder / "one"), *steps))
        size_bytes = sum(row["bytes"] for row in whole)
        print(f"{size_bytes / 2**20:,.0f} MB of Parquet in {sum(row['files'] for row in whole)} files")

        chance, where = random.Random(seed), folder / "killed"
        for _ in range(kills):
            copying = archive(TOPIC, "--to", str(where), *steps)
            assert run_until(copying, folder / "log", moment(where, chance, 40)), "the run ended before it was killed"
        timed("archive, after the kills", records, archive(TOPIC, "--to", str(where), *steps))
        found = timed("verify", records, archive("verify", str(where)))
        assert found["faults"] == [], found["faults"]
        assert sum(row["compared"] for row in found["partitions"]) == records
        for remark in found["remarks"]:
            print(remark)
        sent = timed("replay", records, archive("replay", str(where), TOPIC, "--into", AGAIN))
        assert sum(row["sent"] for row in sent) == records


if __name__ == "__main__":
    typer.run(main)
