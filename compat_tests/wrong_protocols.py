"""The programs of docs/troubleshooting.md with stock clients that use another protocol than the listener, or do not
trust it, each in a separate process.

`python -m compat_tests.wrong_protocols` prints the output of each client and of the broker, in Markdown.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from compat_tests.conftest import Running
from oracle.broker import KPyBroker
from oracle.jars import jars, java
from oracle.kafka import Kafka
from oracle.target import steady_port
from tests.certificates import sign

AUTHORITY, STRANGER = sign("authority"), sign("stranger")
USER, PASSWORD = "ann", "of ann"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
LISTENERS = {
    "CLEAR": "PLAINTEXT",
    "TLS": "SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
}
"""The broker's listeners. The certificate of EXPIRED has expired, and that of ELSEWHERE is for another host."""
PATIENCE_S = 60.0


class Situation(NamedTuple):
    """A listener, and a client that does not match it: the client's protocol, its mechanism, and whether it trusts only
    a foreign authority."""

    listener: str
    protocol: str
    mechanism: str = "PLAIN"
    trusts_stranger: bool = False


SITUATIONS: Mapping[str, Situation] = {
    "tls_to_plain": Situation("CLEAR", "SSL"),
    "plain_to_tls": Situation("TLS", "PLAINTEXT"),
    "login_to_plain": Situation("CLEAR", "SASL_PLAINTEXT"),
    "plain_to_login": Situation("LOGIN", "PLAINTEXT"),
    "wrong_mechanism": Situation("LOGIN", "SASL_PLAINTEXT", "SCRAM-SHA-256"),
    "unknown_authority": Situation("TLS", "SSL", trusts_stranger=True),
    "expired_certificate": Situation("EXPIRED", "SSL"),
    "another_host": Situation("ELSEWHERE", "SSL"),
}

CONFLUENT = """
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": BOOTSTRAP, "message.timeout.ms": 4000, **SETTINGS})
producer.produce("orders", b"1", on_delivery=lambda error, message: print(error or "delivered"))
producer.flush(8)
"""
KAFKA_PYTHON = """
import logging
logging.basicConfig(level="WARNING", format="%(levelname)s %(message)s")
from kafka import KafkaProducer
settings = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, max_block_ms=6000, **settings)
print(producer.send("orders", b"1").get(8) and "delivered")
"""


@contextmanager
def broker(target_name: str, directory: Path) -> Iterator[tuple[Running, Mapping[str, int]]]:
    """A broker with all listeners, and their ports."""
    running: Running = Kafka(jvm=("-XX:TieredStopAtLevel=1",)) if target_name == "kafka" else KPyBroker()
    ports = {name: steady_port() for name in LISTENERS}
    trusted = directory / "ca.pem"
    trusted.write_text(AUTHORITY.chain_pem)
    (directory / "stranger.pem").write_text(STRANGER.chain_pem)
    stores = {
        "TLS": sign("localhost", AUTHORITY),
        "EXPIRED": sign("localhost", AUTHORITY, days=-1),
        "ELSEWHERE": sign("elsewhere", AUTHORITY, hosts=["elsewhere.example.org"]),
    }
    shown = f"PLAINTEXT://127.0.0.1:{running.port}," + ",".join(
        f"{each}://localhost:{at}" for each, at in ports.items()
    )
    controller = f",CONTROLLER://127.0.0.1:{running.controller_port}" if isinstance(running, Kafka) else ""
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **LISTENERS}
    running.properties |= {
        "listeners": shown + controller,
        "advertised.listeners": shown,
        "listener.security.protocol.map": ",".join(":".join(pair) for pair in protocols.items()),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_{USER}="{PASSWORD}";',
        "ssl.keystore.type": "PEM",
        **{
            f"listener.name.{name.lower()}.ssl.keystore.location": str(signed.pem(directory / f"{name}.pem"))
            for name, signed in stores.items()
        },
    }
    running.start()
    try:
        yield running, ports
    finally:
        running.stop()


def said_by(client: str, situation: Situation, port: int, directory: Path) -> str:
    """The output of a client, on stdout and stderr."""
    trusted = str(directory / ("stranger.pem" if situation.trusts_stranger else "ca.pem"))
    bootstrap = f"localhost:{port}"
    if client == "Java":
        return _run(_java(situation, trusted, bootstrap, directory), "")
    settings = {"security.protocol": situation.protocol}
    if "SSL" in situation.protocol:
        settings["ssl.ca.location" if client == "confluent-kafka" else "ssl.cafile"] = trusted
    if "SASL" in situation.protocol:
        names = ("sasl.username", "sasl.password")
        if client == "kafka-python":
            names = ("sasl.plain.username", "sasl.plain.password")
        settings |= {"sasl.mechanism": situation.mechanism, names[0]: USER, names[1]: PASSWORD}
    head = f"BOOTSTRAP = {bootstrap!r}\nSETTINGS = {settings!r}\n"
    return _run([sys.executable, "-"], head + (CONFLUENT if client == "confluent-kafka" else KAFKA_PYTHON))


def _java(situation: Situation, trusted: str, bootstrap: str, directory: Path) -> list[str]:
    module = PLAIN_MODULE if situation.mechanism == "PLAIN" else SCRAM_MODULE
    settings = {
        "security.protocol": situation.protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": trusted,
        "sasl.mechanism": situation.mechanism,
        "sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORD}";',
        "default.api.timeout.ms": "25000",
        "request.timeout.ms": "10000",
    }
    with tempfile.NamedTemporaryFile("w", dir=directory, suffix=".properties", delete=False) as file:
        file.write("".join(f"{name}={value}\n" for name, value in settings.items()))
    quick = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*"]
    tool = ["org.apache.kafka.tools.TopicCommand", "--bootstrap-server", bootstrap, "--list"]
    return [java(), *quick, *tool, "--command-config", file.name]


def _run(command: list[str], program: str) -> str:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        return process.communicate(program, timeout=PATIENCE_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0] + f"(still running after {PATIENCE_S:g} s)\n"


CLIENTS = ("confluent-kafka", "kafka-python", "Java")
BROKER = "the broker's log"


def distinct(said: str) -> list[str]:
    """Lines without parts that change from run to run (times, ports, source lines of tracebacks), each once."""
    lines = (line for line in said.splitlines() if not line.startswith((" ", "\t", "Traceback", "...")))
    plain = (re.sub(r"%(\d)\|[\d.]+\|", r"%\1|…|", line) for line in lines)
    plain = (re.sub(r"(127\.0\.0\.1|::1|localhost|\]|', )([/:])\d{4,5}\b", r"\1\g<2>9092", line) for line in plain)
    plain = (re.sub(r"after \d+ms", "after …ms", line) for line in plain)
    plain = (re.sub(r"^[\[\d][-\d :,.\]]+", "", line) for line in plain)
    return list(dict.fromkeys(plain))


def played(target_name: str, name: str, directory: Path) -> dict[str, str]:
    """The output of each client and of the broker in a situation. The broker is a new one, because it logs only a few
    lines a minute about one address."""
    situation = SITUATIONS[name]
    with broker(target_name, directory) as (running, ports), ThreadPoolExecutor(len(CLIENTS)) as threads:
        found = {
            client: threads.submit(said_by, client, situation, ports[situation.listener], directory)
            for client in CLIENTS
        }
        said = {client: each.result() for client, each in found.items()}
        said[BROKER] = running.output.read_text()
    running.remove()
    return {who: "\n".join(distinct(text)) for who, text in said.items()}


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else "kpybroker"
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        for name in sys.argv[2:] or SITUATIONS:
            print(f"## {name}\n", flush=True)
            for who, text in played(target, name, directory).items():
                print(f"### {who}\n\n```\n{text}\n```\n", flush=True)


if __name__ == "__main__":
    main()
