"""Runs stock clients and the `kpybroker` command, each in a separate process, in the error situations that
docs/troubleshooting.md describes.

`python -m compat_tests.troubles` prints their output, in Markdown.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

from kpybroker.testing import Broker, Cluster
from oracle.target import steady_port

PATIENCE_S = 45.0
"""A program that is still running after this time is killed, and its output says so."""

PRODUCE = {
    "confluent-kafka": """
import os
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": BOOTSTRAP, "message.timeout.ms": 4000, **MORE})
for value in VALUES:
    if value is None:
        os.kill(PID, 9)
        continue
    producer.produce(TOPIC, value, on_delivery=lambda error, message: print(error or "delivered"))
    left = producer.flush(8)
""",
    "kafka-python": """
import os
from kafka import KafkaProducer
more = {name.replace(".", "_"): value for name, value in MORE.items()}
producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, max_block_ms=6000, **more)
for value in VALUES:
    if value is None:
        os.kill(PID, 9)
        continue
    print(producer.send(TOPIC, value).get(8) and "delivered")
""",
    "aiokafka": """
import asyncio, os
from aiokafka import AIOKafkaProducer
async def main():
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, request_timeout_ms=4000, **MORE)
    try:
        await producer.start()
        for value in VALUES:
            if value is None:
                os.kill(PID, 9)
                continue
            await asyncio.wait_for(producer.send_and_wait(TOPIC, value), 8)
            print("delivered")
    finally:
        await producer.stop()
asyncio.run(main())
""",
    "kpybroker": """
import sys
from kpybroker.__main__ import main
sys.argv = ["kpybroker", "--bootstrap", BOOTSTRAP, "--timeout", "5", "produce", TOPIC, "--file", FILE]
sys.exit(main())
""",
}

CONSUME = {
    "confluent-kafka": """
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": GROUP, "auto.offset.reset": "earliest"})
consumer.subscribe([TOPIC])
message = consumer.poll(6)
print("None" if message is None else message.error() or message.value())
""",
    "kafka-python": """
from kafka import KafkaConsumer
consumer = KafkaConsumer(TOPIC, bootstrap_servers=BOOTSTRAP, group_id=GROUP, auto_offset_reset="earliest")
print(consumer.poll(6000))
""",
    "aiokafka": """
import asyncio
from aiokafka import AIOKafkaConsumer
async def main():
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=BOOTSTRAP, group_id=GROUP, auto_offset_reset="earliest")
    try:
        await consumer.start()
        print(await consumer.getmany(timeout_ms=6000))
    finally:
        await consumer.stop()
asyncio.run(main())
""",
    "kpybroker": """
import sys
from kpybroker.__main__ import main
sys.argv = ["kpybroker", "--bootstrap", BOOTSTRAP, "--timeout", "5", "consume", TOPIC, "--from-beginning"]
sys.exit(main())
""",
}


SILENT_MEMBER = """
import time
from confluent_kafka import Consumer
shared = {"auto.offset.reset": "earliest", "partition.assignment.strategy": "range,roundrobin"}
consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": "billing", **shared})
consumer.subscribe(["orders"])
assert consumer.poll(10) is not None
print("joined", flush=True)
time.sleep(600)
"""

DESCRIBE = """
import sys
from kpybroker.__main__ import main
sys.argv = ["kpybroker", "--bootstrap", BOOTSTRAP, "groups", "describe", GROUP]
sys.exit(main())
"""


def said_by(
    program: str, bootstrap: str, values: Sequence[bytes | None] = (b"1",), pid: int = 0, **more: object
) -> str:
    """The output of a program on stdout and stderr.

    values: the values to produce, in order; at None, the process `pid` is killed. `more`: client settings.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(value or b"" for value in values))
        file.flush()
        given = {"BOOTSTRAP": bootstrap, "TOPIC": "orders", "VALUES": values, "PID": pid, "FILE": file.name}
        head = "".join(f"{name} = {thing!r}\n" for name, thing in {**given, "GROUP": "billing", "MORE": more}.items())
        process = subprocess.Popen(
            [sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            said, _ = process.communicate(head + program, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0] + f"(still running after {PATIENCE_S:g} s)\n"
    return said


def distinct(said: str) -> list[str]:
    """Lines without parts that change from run to run (times, ports, source lines of tracebacks), each once."""
    lines = (line for line in said.splitlines() if not line.startswith((" ", "Traceback")))
    plain = (re.sub(r"%(\d)\|[\d.]+\|", r"%\1|…|", line) for line in lines)
    plain = (
        re.sub(r"(127\.0\.0\.1(?::|', ))\d+", r"\g<1>9092", re.sub(r"after \d+ms", "after …ms", line)) for line in plain
    )
    return list(dict.fromkeys(plain))


def nobody_listens(client: str) -> str:
    """Connect to a reserved port without a listener."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        return said_by(PRODUCE[client], address) + said_by(CONSUME[client], address)


def at_the_http_port(client: str) -> str:
    """Connect to the metrics port instead of the listener."""
    port = steady_port()
    with Broker({"kpybroker.http.port": port}):
        return said_by(PRODUCE[client], f"127.0.0.1:{port}")


def no_such_topic(client: str) -> str:
    """Use a topic that does not exist, and that clients do not create."""
    with Broker({"auto.create.topics.enable": False}) as broker:
        return said_by(PRODUCE[client], broker.bootstrap) + said_by(CONSUME[client], broker.bootstrap)


def a_group_that_is_stuck(client: str) -> str:
    """Join a group in which one member is alive but does not poll: it does not join again, and the other members wait
    for it."""
    if client == "kpybroker":
        return ""  # it reads without a group
    with Broker() as broker:
        assert said_by(PRODUCE["confluent-kafka"], broker.bootstrap) == "delivered\n"
        given = f"BOOTSTRAP = {broker.bootstrap!r}\n"
        member = subprocess.Popen([sys.executable, "-c", given + SILENT_MEMBER], stdout=subprocess.PIPE, text=True)
        try:
            assert member.stdout is not None
            assert member.stdout.readline() == "joined\n"
            return said_by(CONSUME[client], broker.bootstrap) + said_by(DESCRIBE, broker.bootstrap)
        finally:
            member.kill()
            member.communicate()


def too_large(client: str) -> str:
    """Send a record of 2 MB: first with the client's default limit, then with a higher limit."""
    limit = {"confluent-kafka": "message.max.bytes"}.get(client, "max_request_size")
    with Broker() as broker:
        large = [b"x" * 2_000_000]
        said = said_by(PRODUCE[client], broker.bootstrap, large)
        return said + said_by(PRODUCE[client], broker.bootstrap, large, 0, **{limit: 4_000_000})


def too_few_in_sync(client: str) -> str:
    """Send records while `min.insync.replicas` is three and one of three brokers is down."""
    with Cluster(3, {"min.insync.replicas": 3}) as cluster:
        assert said_by(PRODUCE["confluent-kafka"], cluster.bootstrap) == "delivered\n"
        cluster.kill(3)
        addresses = ",".join(cluster.bootstrap.split(",")[:2])
        return said_by(PRODUCE[client], addresses, **ACKS_ALL.get(client, {}))


def killed(client: str) -> str:
    """Kill the broker between two records."""
    if client == "kpybroker":
        return ""  # it has no second record to send
    with Broker() as broker:
        return said_by(PRODUCE[client], broker.bootstrap, [b"1", None, b"2"], broker.pid)


def with_tls(client: str) -> str:
    """Connect with TLS to a listener without TLS."""
    if client == "kpybroker":
        return ""
    with Broker() as broker:
        program = "import ssl\n" + PRODUCE[client].replace("**MORE", "**MORE, **TLS").replace("**more", "**more, **TLS")
        setting = {
            "confluent-kafka": '{"security.protocol": "ssl"}',
            "kafka-python": '{"security_protocol": "SSL"}',
            "aiokafka": '{"security_protocol": "SSL", "ssl_context": ssl.create_default_context()}',
        }[client]
        return said_by(f"import ssl\nTLS = {setting}\n" + program, broker.bootstrap)


ACKS_ALL: Mapping[str, Mapping[str, object]] = {"aiokafka": {"acks": "all"}, "kafka-python": {"acks": "all"}}
SITUATIONS: tuple[Callable[[str], str], ...] = (
    nobody_listens,
    at_the_http_port,
    with_tls,
    no_such_topic,
    a_group_that_is_stuck,
    too_large,
    too_few_in_sync,
    killed,
)


def main() -> None:
    wanted = sys.argv[1:]
    for situation in SITUATIONS:
        if wanted and situation.__name__ not in wanted:
            continue
        print(f"## {situation.__name__}\n", flush=True)
        for client in PRODUCE:
            started = time.monotonic()
            said = "\n".join(distinct(situation(client)))
            print(f"### {client} ({time.monotonic() - started:.1f} s)\n\n```\n{said}\n```\n", flush=True)


if __name__ == "__main__":
    main()
