"""Tests of SASL_PLAINTEXT: stock clients log in, and each response to a failed login equals Apache Kafka's."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError

from compat_tests.conftest import EXIT_CODES, Running
from compat_tests.sasl_socket import SaslSocket, sasl_socket
from kpybroker.errors import ErrorCode
from kpybroker.security.sasl.scram import ScramClient
from kpybroker.security.scram import ScramMechanism
from kpybroker.wire.rpc import api_versions, list_groups, metadata, sasl_authenticate, sasl_handshake
from oracle.broker import KPyBroker
from oracle.kafka import Kafka
from oracle.target import steady_port
from oracle.tools import tool

USER, PASSWORD = "ann", "a secret, of=ann"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TOPIC = "behind-a-login"
LIFETIME_MS = 4000
AUTHENTICATION = -169
"""librdkafka's own code for a failed login."""
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
SHARED = "Authentication failed during authentication due to invalid credentials with SASL mechanism "
TOKENS = "Invalid SASL/PLAIN response: expected 3 tokens, got "
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_USERS = f"{PLAIN_MODULE} required user_ann=\"{PASSWORD}\" user_bob='b' /* in Java's other quotation marks */;"
SETTINGS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,NAMED:SASL_PLAINTEXT,"
    "RENEWED:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "listener.name.renewed.connections.max.reauth.ms": str(LIFETIME_MS),
    **{f"listener.name.{name}.plain.sasl.jaas.config": PLAIN_USERS for name in ("named", "renewed")},
    **{
        f"listener.name.{name}.{mechanism}.sasl.jaas.config": f"{SCRAM_MODULE} required;"
        for name in ("named", "renewed")
        for mechanism in ("scram-sha-256", "scram-sha-512")
    },
}


class Doors:
    """A broker, and the ports of its listeners with logins."""

    def __init__(self, broker: Running, named: int, renewed: int) -> None:
        self.broker = broker
        self.named = named
        self.renewed = renewed

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.named}"


@pytest.fixture(scope="module")
def doors(target_name: str) -> Iterator[Doors]:
    broker: Running = Kafka(jvm=("-XX:TieredStopAtLevel=1",)) if target_name == "kafka" else KPyBroker()
    named, renewed = steady_port(), steady_port()
    shown = f"PLAINTEXT://127.0.0.1:{broker.port},NAMED://127.0.0.1:{named},RENEWED://127.0.0.1:{renewed}"
    controller = f",CONTROLLER://127.0.0.1:{broker.controller_port}" if isinstance(broker, Kafka) else ""
    broker.properties |= {**SETTINGS, "listeners": shown + controller, "advertised.listeners": shown}
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
    for mechanism in MECHANISMS[1:]:
        user = ("--entity-type", "users", "--entity-name", USER)
        credential = f"{mechanism}=[iterations=4096,password={PASSWORD.split(',')[0]}]"
        tool("kafka-configs", "--alter", *user, "--add-config", credential, bootstrap=broker.bootstrap).ok()
    yield Doors(broker, named, renewed)
    assert broker.stop() == EXIT_CODES[target_name]
    broker.remove()


def password(mechanism: str) -> str:
    """The password for a mechanism. For SCRAM it has no comma, which kafka-configs cannot parse."""
    return PASSWORD if mechanism == "PLAIN" else PASSWORD.split(",", maxsplit=1)[0]


@pytest.fixture
def raw(doors: Doors) -> Iterator[SaslSocket]:
    with sasl_socket(doors.named) as opened:
        yield opened


@pytest.fixture
def renewed(doors: Doors) -> Iterator[SaslSocket]:
    with sasl_socket(doors.renewed) as opened:
        yield opened


# ---- clients


def librdkafka(doors: Doors, mechanism: str, secret: str) -> dict[str, str | int]:
    return {
        "bootstrap.servers": doors.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": secret,
        "log_level": 0,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_logs_in(doors: Doors, mechanism: str, unique: Callable[[], str]) -> None:
    settings = librdkafka(doors, mechanism, password(mechanism))
    value = unique().encode()
    producer = Producer(settings)
    producer.produce(TOPIC, value)
    assert producer.flush(30) == 0
    consumer = Consumer({**settings, "group.id": unique(), "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + 60
    found = []
    while value not in found and time.monotonic() < deadline:
        message = consumer.poll(1)
        found += [message.value()] if message is not None and message.error() is None else []
    consumer.close()
    assert value in found


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_reports_a_wrong_password(doors: Doors, mechanism: str) -> None:
    told: list[KafkaError] = []
    producer = Producer({**librdkafka(doors, mechanism, "wrong"), "error_cb": told.append})
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not any(error.code() == AUTHENTICATION for error in told):
        producer.poll(0.1)
    said = next(error.str() for error in told if error.code() == AUTHENTICATION)
    assert re.search("Invalid username or password" if mechanism == "PLAIN" else SHARED + mechanism, said)


def test_confluent_kafka_reports_a_wrong_mechanism(doors: Doors) -> None:
    told: list[KafkaError] = []
    settings = {**librdkafka(doors, "OAUTHBEARER", "x"), "enable.sasl.oauthbearer.unsecure.jwt": "true"}
    settings |= {"sasl.oauthbearer.config": "principal=ann", "error_cb": told.append}
    producer = Producer(settings)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not any("mechanism" in error.str() for error in told):
        producer.poll(0.1)
    assert any("OAUTHBEARER mechanism" in error.str() or "PLAIN" in error.str() for error in told), told


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in(doors: Doors, mechanism: str) -> None:
    login = {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "security_protocol": "SASL_PLAINTEXT"}
    producer = KafkaProducer(bootstrap_servers=doors.bootstrap, sasl_plain_password=password(mechanism), **login)
    assert producer.send(TOPIC, b"x").get(30).topic == TOPIC
    producer.close()
    with pytest.raises(KafkaPythonError):
        KafkaProducer(
            bootstrap_servers=doors.bootstrap, sasl_plain_password="wrong", bootstrap_timeout_ms=2000, **login
        ).send(TOPIC, b"x").get(10)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_logs_in(doors: Doors, mechanism: str) -> None:
    async def play() -> None:
        login = {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "security_protocol": "SASL_PLAINTEXT"}
        producer = AIOKafkaProducer(bootstrap_servers=doors.bootstrap, sasl_plain_password=password(mechanism), **login)
        await producer.start()
        assert (await producer.send_and_wait(TOPIC, b"x")).topic == TOPIC
        await producer.stop()
        refused = AIOKafkaProducer(bootstrap_servers=doors.bootstrap, sasl_plain_password="wrong", **login)
        with pytest.raises(AiokafkaError):
            await refused.start()
        await refused.stop()

    asyncio.run(asyncio.wait_for(play(), 60))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafkas_tools_log_in(doors: Doors, mechanism: str, tmp_path: Path) -> None:
    """The tools also list the users, but never show their credentials."""
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    file = tmp_path / "client.properties"
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={module} required username="{USER}" password="{password(mechanism)}";\n'
    )
    command = ("--command-config", str(file), "--describe", "--entity-type", "users", "--entity-name", USER)
    told = tool("kafka-configs", *command, bootstrap=doors.bootstrap).ok()
    assert "SCRAM-SHA-256=iterations=4096" in told
    assert "SCRAM-SHA-512=iterations=4096" in told
    assert PASSWORD.split(",", maxsplit=1)[0] not in told


# ---- the order of requests


def test_other_requests_before_a_login_close(doors: Doors) -> None:
    for name, request in (("Metadata", metadata.Request()), ("SaslAuthenticate", sasl_authenticate.Request())):
        with sasl_socket(doors.named) as raw:
            raw.send(name, request, 1)
            assert raw.is_closed()


def test_a_second_api_versions_closes(raw: SaslSocket) -> None:
    raw.versions()
    raw.send("ApiVersions", api_versions.Request(), 0)
    assert raw.is_closed()


def test_refused_api_versions_may_be_repeated(raw: SaslSocket) -> None:
    for _ in range(3):
        raw.send("ApiVersions", api_versions.Request(), 99)
        assert raw.receive("ApiVersions", 0).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert raw.ask("ApiVersions", api_versions.Request(), 3).error_code == ErrorCode.INVALID_REQUEST
    raw.versions()
    assert raw.log_in("PLAIN", USER, PASSWORD).error_code == 0


def test_unserved_versions_close(doors: Doors) -> None:
    with sasl_socket(doors.named) as raw:
        raw.send("SaslHandshake", sasl_handshake.Request(mechanism="PLAIN"), 2)
        assert raw.is_closed()
    with sasl_socket(doors.named) as raw:
        raw.handshake("PLAIN")
        raw.send("SaslAuthenticate", sasl_authenticate.Request(auth_bytes=b"\0a\0b"), 3)
        assert raw.is_closed()


def test_an_unknown_mechanism_gets_the_list_of_known_ones(raw: SaslSocket) -> None:
    told = raw.handshake("GSSAPI")
    assert told.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert sorted(told.mechanisms) == sorted(MECHANISMS)
    assert raw.is_closed()


def test_a_handshake_lists_the_mechanisms(raw: SaslSocket) -> None:
    assert sorted(raw.handshake("PLAIN").mechanisms) == sorted(MECHANISMS)


def test_another_request_instead_of_a_token(doors: Doors) -> None:
    with sasl_socket(doors.named) as raw:
        raw.handshake("PLAIN")
        told = raw.handshake("PLAIN")
        assert (told.error_code, told.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
        assert raw.is_closed()
    with sasl_socket(doors.named) as raw:
        raw.handshake("PLAIN")
        assert raw.ask("ListGroups", list_groups.Request()).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert raw.is_closed()


def test_bare_tokens(doors: Doors) -> None:
    with sasl_socket(doors.named) as raw:
        assert raw.handshake("PLAIN", 0).error_code == 0
        raw.send_frame(f"\0{USER}\0{PASSWORD}".encode())
        assert raw.frame() == b""
        assert raw.ask("Metadata", metadata.Request(topics=[])).brokers
    with sasl_socket(doors.named) as raw:
        raw.handshake("SCRAM-SHA-256", 0)
        client = ScramClient(ScramMechanism.SCRAM_SHA_256, USER, password("SCRAM"), "bare")
        raw.send_frame(client.first())
        raw.send_frame(client.final(raw.frame()))
        client.check(raw.frame())
    for wrong in (b"\0ann\0wrong", b"", b"x" * 1000):
        with sasl_socket(doors.named) as raw:
            raw.handshake("PLAIN", 0)
            raw.send_frame(wrong)
            assert raw.is_closed()


@pytest.mark.parametrize("size", [524_289, 0x7FFFFFFF, -1])
def test_a_frame_that_is_too_large_closes(raw: SaslSocket, size: int) -> None:
    raw.send_bytes(size.to_bytes(4, "big", signed=True))
    assert raw.is_closed()


def test_the_size_is_limited_until_the_login(raw: SaslSocket) -> None:
    raw.versions()
    assert raw.handshake("PLAIN").error_code == 0
    raw.send_bytes((524_289).to_bytes(4, "big"))
    assert raw.is_closed()


def test_larger_frames_come_after_the_login(raw: SaslSocket) -> None:
    assert raw.log_in("PLAIN", USER, PASSWORD).error_code == 0
    names = [metadata.MetadataRequestTopic(name="n" * 249) for _ in range(2200)]
    assert len(raw.ask("Metadata", metadata.Request(topics=names, allow_auto_topic_creation=False), 4).topics) >= 1


# ---- responses


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\0ann\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0x", "Authentication failed: Invalid username or password"),
        (b"\0\0x", "Authentication failed: username not specified"),
        (b"\0ann\0", "Authentication failed: password not specified"),
        (
            b"bob\0ann\0" + PASSWORD.encode(),
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"ann\0ann", TOKENS + "2"),
        (b"", TOKENS + "1"),
        (b"\0ann\0x\0y", TOKENS + "4"),
        (b"\0\0\0\0\0\0", TOKENS + "4"),
    ],
)
@pytest.mark.parametrize("version", [0, 2])
def test_plain_messages_that_are_refused(raw: SaslSocket, data: bytes, said: str, version: int) -> None:
    raw.handshake("PLAIN")
    told = raw.token(data, version)
    assert (told.error_code, told.error_message, told.auth_bytes) == (FAILED, said, b"")
    assert raw.is_closed()


def test_an_authorization_id_may_be_the_user(raw: SaslSocket) -> None:
    raw.handshake("PLAIN")
    told = raw.token(f"{USER}\0{USER}\0{PASSWORD}".encode())
    assert (told.error_code, told.error_message, told.auth_bytes, told.session_lifetime_ms) == (0, "", b"", 0) or (
        told.error_message is None
    )


@pytest.mark.parametrize("mechanism", MECHANISMS[1:])
def test_scram_messages_that_are_refused(doors: Doors, mechanism: str) -> None:
    with sasl_socket(doors.named) as raw:
        told = raw.log_in(mechanism, USER, "wrong")
        assert (told.error_code, told.error_message) == (FAILED, SHARED + mechanism)
        assert raw.is_closed()
    other = "Authentication failed: Client requested an authorization id that is different from username"
    for first, said in (
        (b"y,,n=ann,r=abc", SHARED + mechanism),
        (b"p=tls-unique,,n=ann,r=abc", SHARED + mechanism),
        (b"n,,r=abc", SHARED + mechanism),
        (b"", SHARED + mechanism),
        ("n,,n=\u00e9,r=abc".encode(), SHARED + mechanism),
        (b"n,a=bob,n=ann,r=abc", other),
    ):
        with sasl_socket(doors.named) as raw:
            raw.handshake(mechanism)
            told = raw.token(first)
            assert (told.error_code, told.error_message) == (FAILED, said), first
            assert raw.is_closed()


@pytest.mark.parametrize("mechanism", MECHANISMS[1:])
def test_extensions_and_authorization_ids_of_scram(raw: SaslSocket, mechanism: str) -> None:
    raw.handshake(mechanism)
    assert raw.token(b"n,a=ann,n=ann,r=abc,x=unknown").error_code == 0


def test_an_unknown_user_of_scram_is_refused(raw: SaslSocket) -> None:
    """Apache Kafka refuses the first message. kpybroker refuses the proof, so that no client can find out which users
    have credentials."""
    assert raw.log_in("SCRAM-SHA-256", "nobody", "x").error_code == FAILED
    assert raw.is_closed()


def test_requests_after_the_login(raw: SaslSocket) -> None:
    raw.versions()
    assert raw.log_in("SCRAM-SHA-512", USER, password("SCRAM")).error_code == 0
    told = raw.handshake("PLAIN")
    assert (told.error_code, told.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    refused = raw.token(b"\0ann\0x")
    said = "SaslAuthenticate request received after successful authentication"
    assert (refused.error_code, refused.error_message) == (ErrorCode.ILLEGAL_SASL_STATE, said)
    raw.versions()
    assert raw.ask("Metadata", metadata.Request(topics=[])).brokers


# ---- sessions


def test_a_session_is_renewed_in_order(renewed: SaslSocket) -> None:
    assert renewed.log_in("PLAIN", USER, PASSWORD).session_lifetime_ms == LIFETIME_MS
    renewed.send("Metadata", metadata.Request(topics=[]), 1)
    renewed.send("ApiVersions", api_versions.Request(), 0)
    renewed.send("SaslHandshake", sasl_handshake.Request(mechanism="PLAIN"), 1)
    assert renewed.receive("Metadata", 1).brokers
    assert renewed.receive("ApiVersions", 0).error_code == 0
    assert renewed.receive("SaslHandshake", 1).error_code == 0
    assert renewed.token(f"\0{USER}\0{PASSWORD}".encode()).session_lifetime_ms == LIFETIME_MS
    assert renewed.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE, "too soon"
    assert renewed.ask("Metadata", metadata.Request(topics=[])).brokers


def test_a_renewed_session_has_the_same_user(renewed: SaslSocket) -> None:
    renewed.log_in("PLAIN", USER, PASSWORD)
    told = renewed.log_in("PLAIN", "bob", "b")
    said = "Cannot change principals during re-authentication from User.ann: User.bob"
    assert (told.error_code, told.error_message) == (FAILED, said)
    assert renewed.is_closed()


def test_a_renewal_with_a_wrong_password(renewed: SaslSocket) -> None:
    renewed.log_in("SCRAM-SHA-256", USER, password("SCRAM"))
    told = renewed.log_in("SCRAM-SHA-256", USER, "wrong")
    said = "Authentication failed during re-authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    assert (told.error_code, told.error_message) == (FAILED, said)
    assert renewed.is_closed()


def test_a_renewed_session_has_the_same_mechanism(renewed: SaslSocket) -> None:
    renewed.log_in("PLAIN", USER, PASSWORD)
    assert renewed.handshake("SCRAM-SHA-256").error_code == 0
    renewed.send("SaslAuthenticate", sasl_authenticate.Request(auth_bytes=b"n,,n=ann,r=abc"), 1)
    assert renewed.is_closed()


def test_another_request_during_a_renewal(renewed: SaslSocket) -> None:
    renewed.log_in("PLAIN", USER, PASSWORD)
    renewed.handshake("PLAIN")
    assert renewed.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert renewed.is_closed()


def test_an_ended_session_is_closed_at_the_next_request(renewed: SaslSocket) -> None:
    renewed.log_in("PLAIN", USER, PASSWORD)
    ended = time.monotonic() + LIFETIME_MS / 1000 + 0.5
    while time.monotonic() < ended:
        time.sleep(0.1)
    renewed.send("Metadata", metadata.Request(topics=[]), 1)
    assert renewed.is_closed()


def test_clients_renew_their_sessions(doors: Doors) -> None:
    """librdkafka renews the session before it ends, and no request fails in between."""
    told: list[KafkaError] = []
    settings = librdkafka(doors, "SCRAM-SHA-256", password("SCRAM"))
    settings |= {"bootstrap.servers": f"127.0.0.1:{doors.renewed}", "error_cb": told.append}
    producer = Producer(settings)
    until = time.monotonic() + 2 * LIFETIME_MS / 1000
    while time.monotonic() < until:
        producer.produce(TOPIC, b"again")
        assert producer.flush(30) == 0
        time.sleep(0.2)
    assert told == []
