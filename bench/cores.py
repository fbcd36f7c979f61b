"""Small Produce requests on `kpybroker dev --brokers N`, from several client processes, for several N in turn.

`python -m bench.cores --brokers 1 2 --clients 2` prints requests per second. Topics have one replica. It needs a quiet
machine with cores for the clients as well.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

from confluent_kafka.admin import AdminClient

from bench.control import create_topic, fresh_name
from bench.load import Stream, drive
from bench.produce_raw import error_position, first_reply, produce_frame
from bench.raw import Connection
from bench.records import batch
from bench.target import Target

PARTITIONS = 8
DEPTH = 10


def rate(leaders: dict[int, str], topic: str, seconds: float) -> float:
    """Requests per second of one client process on these partitions, each at its leader."""
    records = batch(1, 100)
    streams, connections = [], []
    for partition, address in leaders.items():
        connection = Connection(Target("kpybroker", address, os.getpid()))
        request = produce_frame(topic, partition, records)
        sample = first_reply(connection, topic, request)
        streams.append(Stream(connection, [request], DEPTH, sample, (error_position(topic),)))
        connections.append(connection)
    load = drive(connections[0].target, streams, seconds)
    for connection in connections:
        connection.socket.close()
    return load.replies / load.elapsed_s


def measured(brokers: int, clients: int, seconds: float) -> float:
    """Requests per second of all client processes."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready"
        command = [
            "dev",
            "--brokers",
            str(brokers),
            "--port",
            "0",
            "--data-dir",
            f"{folder}/data",
            "--ready-file",
            ready,
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "kpybroker", *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            assert process.stdout is not None
            process.stdout.readline()
            bootstrap = json.loads(ready.read_text())["bootstrap"]
            topic = fresh_name("cores")
            create_topic(Target("kpybroker", bootstrap, process.pid), topic, PARTITIONS)
            shown = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic)
            addresses = {node: f"{broker.host}:{broker.port}" for node, broker in shown.brokers.items()}
            leaders = {index: addresses[each.leader] for index, each in shown.topics[topic].partitions.items()}
            parts = [dict(list(leaders.items())[client::clients]) for client in range(clients)]
            with ProcessPoolExecutor(clients) as pool:
                return sum(pool.map(rate, parts, [topic] * clients, [seconds] * clients))
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    """Print the median rate, and the lowest and the highest, for each number of brokers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--brokers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found: dict[int, list[float]] = {brokers: [] for brokers in given.brokers}
    for _ in range(given.rounds):
        for brokers, rates in found.items():
            rates.append(measured(brokers, given.clients, given.seconds))
    for brokers, rates in found.items():
        print(f"{brokers} brokers: {median(rates) / 1e3:.1f} k/s ({min(rates) / 1e3:.1f} to {max(rates) / 1e3:.1f})")


if __name__ == "__main__":
    main()
