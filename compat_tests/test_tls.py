"""Tests of TLS on both brokers: stock clients with client certificates, and with logins (SASL_SSL)."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from compat_tests.conftest import EXIT_CODES, Running
from oracle.broker import KPyBroker
from oracle.kafka import Kafka
from oracle.target import steady_port
from oracle.tools import tool
from tests.certificates import Signed, sign

AUTHORITY = sign("authority")
LARGE = b"x" * 900_000
"""More than one TLS read returns, and more than a client's socket accepts at once."""
USER, PASSWORD = "ann", "of ann"
CERTIFIED, OLDER, NAMED = "certified", "older", "named"
"""The listeners: with client certificates; the same with TLS 1.2 only; with logins."""
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CERTIFIED:SSL,OLDER:SSL,NAMED:SASL_SSL",
    "inter.broker.listener.name": "PLAINTEXT",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "ssl.client.auth": "required",
    "listener.name.older.ssl.enabled.protocols": "TLSv1.2",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.named.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_{USER}="{PASSWORD}";',
    "listener.name.named.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
}
WAYS = [(CERTIFIED, None), (OLDER, None), (NAMED, "PLAIN"), (NAMED, "SCRAM-SHA-512")]


@dataclass(frozen=True)
class Secured:
    """A broker, the ports of its listeners, and the files of its clients."""

    broker: Running
    ports: Mapping[str, int]
    trusted: Path
    certificate: Path
    key: Path

    def at(self, listener: str) -> str:
        """A bootstrap address by a name that is in the broker's certificate."""
        return f"localhost:{self.ports[listener]}"

    def properties(self, mechanism: str | None) -> dict[str, str]:
        """The settings of Apache Kafka's clients."""
        common = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.trusted)}
        if mechanism is None:
            own = self.key.with_suffix(".pem")
            return {
                **common,
                "security.protocol": "SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(own),
            }
        module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
        jaas = f'{module} required username="{USER}" password="{PASSWORD}";'
        return {**common, "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


@pytest.fixture(scope="module")
def secured(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("stores")
    broker: Running = Kafka(jvm=("-XX:TieredStopAtLevel=1",)) if target_name == "kafka" else KPyBroker()
    ports = {name: steady_port() for name in (CERTIFIED, OLDER, NAMED)}
    trusted, certificate, key = directory / "ca.pem", directory / "client.crt", directory / "client.key"
    trusted.write_text(AUTHORITY.chain_pem)
    client = sign("alice", AUTHORITY)
    certificate.write_text(client.chain_pem)
    key.write_text(client.key_pem())
    key.chmod(0o600)
    client.pem(key.with_suffix(".pem"))
    shown = ",".join(
        (f"PLAINTEXT://127.0.0.1:{broker.port}", *(f"{each.upper()}://localhost:{at}" for each, at in ports.items()))
    )
    controller = f",CONTROLLER://127.0.0.1:{broker.controller_port}" if isinstance(broker, Kafka) else ""
    broker.properties |= {
        **SETTINGS,
        "listeners": shown + controller,
        "advertised.listeners": shown,
        "ssl.keystore.location": str(sign("localhost", AUTHORITY).pem(directory / "server.pem")),
        "ssl.truststore.location": str(trusted),
    }
    broker.start()
    user = ("--entity-type", "users", "--entity-name", USER)
    credential = f"SCRAM-SHA-512=[iterations=4096,password={PASSWORD}]"
    tool("kafka-configs", "--alter", *user, "--add-config", credential, bootstrap=broker.bootstrap).ok()
    yield Secured(broker, ports, trusted, certificate, key)
    assert broker.stop() == EXIT_CODES[target_name]
    broker.remove()


def by_confluent(secured: Secured, listener: str, mechanism: str | None, topic: str) -> list[bytes | None]:
    common: dict[str, Any] = {"bootstrap.servers": secured.at(listener), "ssl.ca.location": str(secured.trusted)}
    if mechanism is None:
        files = {"ssl.certificate.location": str(secured.certificate), "ssl.key.location": str(secured.key)}
        common |= {"security.protocol": "SSL", **files}
    else:
        login = {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
        common |= {"security.protocol": "SASL_SSL", **login}
    producer = confluent_kafka.Producer(common)
    for value in (b"a", LARGE):
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**common, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        return [message.value() for message in consumer.consume(2, 30)]
    finally:
        consumer.close()


def _python_settings(secured: Secured, listener: str, mechanism: str | None) -> dict[str, Any]:
    common = {"bootstrap_servers": secured.at(listener), "security_protocol": "SSL"}
    if mechanism is not None:
        login = {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
        common |= {"security_protocol": "SASL_SSL", **login}
    return common


def by_kafka_python(secured: Secured, listener: str, mechanism: str | None, topic: str) -> list[bytes | None]:
    common = {**_python_settings(secured, listener, mechanism), "ssl_cafile": str(secured.trusted)}
    if mechanism is None:
        common |= {"ssl_certfile": str(secured.certificate), "ssl_keyfile": str(secured.key)}
    producer = kafka.KafkaProducer(**common)
    for value in (b"a", LARGE):
        producer.send(topic, value).get(30)
    producer.close()
    options = {"group_id": topic, "auto_offset_reset": "earliest", "consumer_timeout_ms": 30_000}
    consumer = kafka.KafkaConsumer(topic, **common, **options)
    try:
        return [next(consumer).value for _ in range(2)]
    finally:
        consumer.close()


def by_aiokafka(secured: Secured, listener: str, mechanism: str | None, topic: str) -> list[bytes | None]:
    context = ssl.create_default_context(cafile=secured.trusted)
    if mechanism is None:
        context.load_cert_chain(secured.certificate, secured.key)
    common = {**_python_settings(secured, listener, mechanism), "ssl_context": context}

    async def play() -> list[bytes | None]:
        async with aiokafka.AIOKafkaProducer(**common) as producer:
            for value in (b"a", LARGE):
                await producer.send_and_wait(topic, value)
        options = {"group_id": topic, "auto_offset_reset": "earliest"}
        async with aiokafka.AIOKafkaConsumer(topic, **common, **options) as consumer:
            return [(await consumer.getone()).value for _ in range(2)]

    return asyncio.run(asyncio.wait_for(play(), 60))


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
@pytest.mark.parametrize("client", [by_confluent, by_kafka_python, by_aiokafka])
def test_clients_write_and_read(
    secured: Secured, client: Callable[..., list[bytes | None]], listener: str, mechanism: str | None
) -> None:
    topic = f"{client.__name__}-{listener}-{mechanism}"
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": secured.broker.bootstrap})
    admin.create_topics([confluent_kafka.admin.NewTopic(topic, 1, 1)])[topic].result(30)
    assert client(secured, listener, mechanism, topic) == [b"a", LARGE]


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_kafkas_tools(secured: Secured, tmp_path: Path, listener: str, mechanism: str | None) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text("".join(f"{name}={text}\n" for name, text in secured.properties(mechanism).items()))
    name = f"java-{listener}-{mechanism}"
    for asked, told in ((("--create", "--topic", name), f"Created topic {name}."), (("--list",), name)):
        ran = tool("kafka-topics", "--command-config", str(settings), *asked, bootstrap=secured.at(listener))
        assert told in ran.out.splitlines()


def test_clients_without_a_certificate_are_refused(secured: Secured) -> None:
    stranger: Signed = sign("eve", sign("another authority"))
    for context in (ssl.create_default_context(cafile=secured.trusted), _with(stranger, secured)):

        async def ask(context: ssl.SSLContext = context) -> bytes:
            port = secured.ports[CERTIFIED]
            reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
            writer.write(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
            try:
                return await reader.read(8)
            except OSError:  # the alert
                return b""
            finally:
                writer.close()

        assert asyncio.run(asyncio.wait_for(ask(), 30)) == b""


def _with(client: Signed, secured: Secured) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=secured.trusted)
    context.load_cert_chain(client.pem(secured.key.with_name("stranger.pem")))
    return context


def test_a_store_is_renewed_with_kafka_configs(secured: Secured, tmp_path: Path) -> None:
    renewed = sign("localhost", AUTHORITY)
    of_listener = f"listener.name.{CERTIFIED}.ssl.keystore"
    change = f"{of_listener}.type=PEM,{of_listener}.location={renewed.pem(tmp_path / 'renewed.pem')}"
    broker = ("--alter", "--entity-type", "brokers", "--entity-name", "1")
    at = secured.broker.bootstrap
    wrong = tool("kafka-configs", *broker, "--add-config", f"{of_listener}.location=/nowhere", bootstrap=at)
    assert "InvalidRequestException" in wrong.err
    tool("kafka-configs", *broker, "--add-config", change, bootstrap=at).ok()
    deadline = time.monotonic() + 30
    while (shown := _shown(secured)) != renewed.certificate.public_bytes(Encoding.DER):
        assert time.monotonic() < deadline, shown
        time.sleep(0.2)
    tool("kafka-configs", *broker, "--delete-config", f"{of_listener}.type,{of_listener}.location", bootstrap=at).ok()


def test_stores_whose_settings_contradict_each_other_are_refused(secured: Secured, tmp_path: Path) -> None:
    """The key store of the listener's file is PEM, not encrypted, and so is its trust store."""
    signed = sign("localhost", AUTHORITY)
    key, chain = (text.replace("\n", "\\n") for text in (signed.key_pem(), signed.chain_pem))
    broker = ("--alter", "--entity-type", "brokers", "--entity-name", "1")
    for row in (
        {"keystore.type": "pem"},
        {"keystore.type": "PKCS12"},
        {"keystore.password": "hush"},
        {"key.password": "hush"},
        {"keystore.key": key, "keystore.certificate.chain": chain},
        {"keystore.key": key},
        {"keystore.certificate.chain": chain},
        {"truststore.certificates": chain},
        {"truststore.password": "hush"},
    ):
        added = tmp_path / "added.properties"
        added.write_text("".join(f"listener.name.{CERTIFIED}.ssl.{name}={text}\n" for name, text in row.items()))
        refused = tool("kafka-configs", *broker, "--add-config-file", str(added), bootstrap=secured.broker.bootstrap)
        assert "InvalidRequestException" in refused.err, row
        assert "hush" not in refused.err


def _shown(secured: Secured) -> bytes | None:
    """The certificate that the listener presents at the moment, as DER."""
    context = ssl.create_default_context(cafile=secured.trusted)
    context.load_cert_chain(secured.certificate, secured.key)
    with (
        socket.create_connection(("localhost", secured.ports[CERTIFIED])) as opened,
        context.wrap_socket(opened, server_hostname="localhost") as over,
    ):
        return over.getpeercert(True)
