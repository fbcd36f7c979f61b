"""Stock clients over TLS, with and without certificates of their own."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest

from oracle.broker import KPyBroker
from oracle.target import steady_port
from oracle.tools import tool
from tests.certificates import Signed, sign

AUTHORITY = sign("authority")
LARGE = b"x" * 900_000
"""More than a read of TLS, and more than a client's socket takes at once."""


@contextlib.contextmanager
def secured(directory: Path, **more: str) -> Iterator[str]:
    """A broker with TLS; yields the address of its listener."""
    trusted = directory / "ca.pem"
    trusted.write_text(AUTHORITY.chain_pem)
    plain, secure = steady_port(), steady_port()
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{secure}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(sign("localhost", AUTHORITY).pem(directory / "server.pem")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trusted),
        **{name.replace("_", "."): text for name, text in more.items()},
    }
    with KPyBroker(directory, properties):
        yield f"localhost:{secure}"


def files_of(client: Signed, directory: Path) -> tuple[str, str]:
    """A certificate and its key, in a file each."""
    certificate, key = directory / "client.crt", directory / "client.key"
    certificate.write_text(client.chain_pem)
    key.write_text(client.key_pem())
    key.chmod(0o600)
    return str(certificate), str(key)


def by_confluent(bootstrap: str, ca: str, certificate: str, key: str) -> list[bytes | None]:
    common = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": ca,
        "ssl.certificate.location": certificate,
        "ssl.key.location": key,
    }
    producer = confluent_kafka.Producer(common)
    for value in (b"a", LARGE):
        producer.produce("confluent", value)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**common, "group.id": "c", "auto.offset.reset": "earliest"})
    consumer.subscribe(["confluent"])
    try:
        return [message.value() for message in consumer.consume(2, 30)]
    finally:
        consumer.close()


def by_kafka_python(bootstrap: str, ca: str, certificate: str, key: str) -> list[bytes | None]:
    common = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SSL",
        "ssl_cafile": ca,
        "ssl_certfile": certificate,
        "ssl_keyfile": key,
    }
    producer = kafka.KafkaProducer(**common)
    for value in (b"a", LARGE):
        producer.send("python", value).get(30)
    producer.close()
    options = {"group_id": "p", "auto_offset_reset": "earliest", "consumer_timeout_ms": 30_000}
    consumer = kafka.KafkaConsumer("python", **common, **options)
    try:
        return [next(consumer).value for _ in range(2)]
    finally:
        consumer.close()


def by_aiokafka(bootstrap: str, ca: str, certificate: str, key: str) -> list[bytes | None]:
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(certificate, key)
    common = {"bootstrap_servers": bootstrap, "security_protocol": "SSL", "ssl_context": context}

    async def play() -> list[bytes | None]:
        async with aiokafka.AIOKafkaProducer(**common) as producer:
            for value in (b"a", LARGE):
                await producer.send_and_wait("aio", value)
        options = {"group_id": "a", "auto_offset_reset": "earliest"}
        async with aiokafka.AIOKafkaConsumer("aio", **common, **options) as consumer:
            return [(await consumer.getone()).value for _ in range(2)]

    return asyncio.run(asyncio.wait_for(play(), 60))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_clients_with_certificates_write_and_read(tmp_path: Path, version: str) -> None:
    files = files_of(sign("alice", AUTHORITY), tmp_path)
    with secured(tmp_path, ssl_client_auth="required", ssl_enabled_protocols=version) as bootstrap:
        for client in (by_confluent, by_kafka_python, by_aiokafka):
            assert client(bootstrap, str(tmp_path / "ca.pem"), *files) == [b"a", LARGE]


def test_kafkas_tools_with_certificates(tmp_path: Path) -> None:
    files = {"truststore": tmp_path / "ca.pem", "keystore": sign("alice", AUTHORITY).pem(tmp_path / "client.pem")}
    lines = [f"ssl.{store}.type=PEM\nssl.{store}.location={path}\n" for store, path in files.items()]
    settings = tmp_path / "client.properties"
    settings.write_text("security.protocol=SSL\n" + "".join(lines))
    with secured(tmp_path, ssl_client_auth="required") as bootstrap:
        for asked, told in (
            (("--create", "--topic", "java"), "Created topic java."),
            (("--list",), "java"),
        ):
            ran = tool("kafka-topics", "--command-config", str(settings), *asked, bootstrap=bootstrap)
            assert ran.out.strip() == told
