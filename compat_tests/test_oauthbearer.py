"""Tests of OAUTHBEARER: stock clients log in with tokens, and each response to a wrong token equals Apache Kafka's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka.errors import KafkaError as KafkaPythonError
from kafka.net.sasl import oauth

from compat_tests.changing import until
from compat_tests.conftest import EXIT_CODES, Running
from compat_tests.sasl_socket import SaslSocket, sasl_socket
from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc import metadata, sasl_authenticate
from oracle.broker import KPyBroker
from oracle.identity_provider import (
    LIFETIME_S,
    IdentityProvider,
    KeyServer,
    claims_of,
    first_message,
    unsecured,
)
from oracle.kafka import Kafka
from oracle.target import NotStarted, steady_port
from oracle.tools import alone, tool
from tests.certificates import sign

TOPIC = "behind-a-token"
AUDIENCE, ISSUER = "kafka", "https://login.example.org"
MAX_REAUTH_MS = 60_000
AUTHENTICATION = -169
"""librdkafka's own code for a failed login."""
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
SHARED = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
INVALID = '{"status":"invalid_token"}'
LACKS_SCOPE = '{"status":"insufficient_scope", "scope":"[read, write]"}'
SEEN = b"\x01"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
"""Apache Kafka requests only URLs that this Java property allows."""
DOORS = ("open", "scoped", "renewed", "signed", "loose", "remote")
"""Three listeners with unsecured tokens, and three with signed ones. The last one fetches its keys by https."""
SIGNING = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


def settings_of(keys: str, remote: str, trust: str = "") -> dict[str, str]:
    """The settings of the broker. `trust` has the TLS options for the URL of the keys."""

    def of(door: str, **settings: str) -> dict[str, str]:
        return {f"listener.name.{door}.oauthbearer.{name.replace('_', '.')}": text for name, text in settings.items()}

    signed = {"sasl_jaas_config": f"{MODULE} required;", "sasl_server_callback_handler_class": HANDLER}
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        + ",".join(f"{door.upper()}:SASL_PLAINTEXT" for door in DOORS),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        **of("open", sasl_jaas_config=f"{MODULE} required;"),
        **of("renewed", sasl_jaas_config=f"{MODULE} required;", connections_max_reauth_ms=str(MAX_REAUTH_MS)),
        **of(
            "scoped",
            sasl_jaas_config=f'{MODULE} required unsecuredLoginStringClaim_sub="broker" '
            'unsecuredValidatorPrincipalClaimName="name" unsecuredValidatorScopeClaimName="scp" '
            'unsecuredValidatorRequiredScope="read write" unsecuredValidatorAllowableClockSkewMs="20000";',
        ),
        **of("signed", **signed, sasl_oauthbearer_expected_issuer=ISSUER, sasl_oauthbearer_jwks_endpoint_url=keys),
        "listener.name.signed.sasl.oauthbearer.expected.audience": f"{AUDIENCE},other",
        **of(
            "loose",
            **signed,
            sasl_oauthbearer_jwks_endpoint_url=keys,
            sasl_oauthbearer_clock_skew_seconds="10",
            sasl_oauthbearer_sub_claim_name="who",
            sasl_oauthbearer_scope_claim_name="scp",
        ),
        **of(
            "remote",
            sasl_server_callback_handler_class=HANDLER,
            sasl_jaas_config=f'{MODULE} required unsecuredLoginStringClaim_sub="broker" {trust};',
            sasl_oauthbearer_jwks_endpoint_url=remote,
            sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms="300",
        ),
    }


class Doors(NamedTuple):
    """A broker with its listeners, and the signer of tokens for them."""

    broker: Running
    ports: dict[str, int]
    provider: IdentityProvider
    keys: Path
    server: KeyServer
    remote: IdentityProvider

    def bootstrap(self, door: str) -> str:
        return f"127.0.0.1:{self.ports[door]}"

    def open(self, door: str) -> contextlib.AbstractContextManager[SaslSocket]:
        return sasl_socket(self.ports[door])


def broker_of(target_name: str, settings: dict[str, str], *urls: str) -> tuple[Running, dict[str, int]]:
    """A broker that is not started yet, and the ports of its listeners."""
    allowed = f"-D{ALLOWED}={','.join(urls)}"
    broker: Running = Kafka(jvm=("-XX:TieredStopAtLevel=1", allowed)) if target_name == "kafka" else KPyBroker()
    ports = {door: steady_port() for door in DOORS}
    shown = ",".join(f"{door.upper()}://127.0.0.1:{port}" for door, port in {"PLAINTEXT": broker.port, **ports}.items())
    controller = f",CONTROLLER://127.0.0.1:{broker.controller_port}" if isinstance(broker, Kafka) else ""
    broker.properties |= {**settings, "listeners": shown + controller, "advertised.listeners": shown}
    return broker, ports


@pytest.fixture(scope="module")
def doors(target_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    provider, remote = IdentityProvider(*SIGNING, "HS256"), IdentityProvider("RS256", "ES256")
    provider.add("short", "RS256", bits=1024)
    provider.add("unknown", "RS256")
    provider.shown.append("short")
    keys = tmp_path_factory.mktemp("provider") / "keys.json"
    broken = ({"kty": "XX", "kid": "x"}, {"kid": 3}, {"kty": "RSA", "kid": "bad", "n": "!", "e": "AQAB"})
    keys.write_text(provider.key_set(*broken))
    authority = sign("authority")
    trusted = keys.with_name("authority.pem")
    trusted.write_text(authority.chain_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sign("server", authority).pem(keys.with_name("server.pem")))
    trust = f'ssl.truststore.type="PEM" ssl.truststore.location="{trusted}"'
    with KeyServer(context) as server:
        moved = server.show("/moved", "", 302, Location="/keys")
        server.show("/keys", remote.key_set())
        broker, ports = broker_of(target_name, settings_of(keys.as_uri(), moved, trust), keys.as_uri(), moved)
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        yield Doors(broker, ports, provider, keys, server, remote)
        assert broker.stop() == EXIT_CODES[target_name]
        broker.remove()


def signed(doors: Doors, **changed: object) -> str:
    """A token for the listener that requires an issuer and an audience."""
    return doors.provider.token(claims_of(**{"aud": AUDIENCE, "iss": ISSUER, **changed}))


def log_in(raw: SaslSocket, message: bytes) -> sasl_authenticate.Response:
    """The handshake and the client's first message; returns the response."""
    assert raw.handshake("OAUTHBEARER").error_code == 0
    return raw.token(message)


def said_of(doors: Doors, door: str, token: str) -> str:
    """The error for a token, which the client receives twice; empty if the token is accepted."""
    with doors.open(door) as raw:
        told = log_in(raw, first_message(token))
        if told.error_code == 0 and not told.auth_bytes:
            assert is_served(raw)
            return ""
        assert (told.error_code, told.error_message or "", told.session_lifetime_ms) == (0, "", 0)
        failed = raw.token(SEEN)
        assert (failed.error_code, failed.auth_bytes) == (FAILED, b"")
        assert failed.error_message == told.auth_bytes.decode()
        assert raw.is_closed()
        return failed.error_message


def is_served(raw: SaslSocket) -> bool:
    """Whether a request gets a response; if not, the connection is closed."""
    try:
        return bool(raw.ask("Metadata", metadata.Request(topics=[])).brokers)
    except ConnectionError:
        return False


def logs_in(doors: Doors, door: str, token: str) -> bool:
    return not said_of(doors, door, token)


# ---- clients


def librdkafka(doors: Doors, door: str) -> dict[str, object]:
    servers = {"bootstrap.servers": doors.bootstrap(door), "log_level": 0}
    return {**servers, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


def with_tokens(doors: Doors, make: Callable[[], str]) -> dict[str, object]:
    """The callback with which librdkafka requests a token and its expiry time."""
    return {**librdkafka(doors, "signed"), "oauth_cb": lambda _: (make(), time.time() + LIFETIME_S)}


def test_confluent_kafka_logs_in(doors: Doors, unique: Callable[[], str]) -> None:
    value = unique().encode()
    by_itself = {"enable.sasl.oauthbearer.unsecure.jwt": True, "sasl.oauthbearer.config": "principal=ann"}
    producer = Producer({**librdkafka(doors, "open"), **by_itself})
    producer.poll(0)
    producer.produce(TOPIC, value)
    assert producer.flush(30) == 0
    reader = {"group.id": unique(), "auto.offset.reset": "earliest"}
    consumer = Consumer({**with_tokens(doors, lambda: signed(doors)), **reader})
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + 60
    found = []
    while value not in found and time.monotonic() < deadline:
        message = consumer.poll(1)
        found += [message.value()] if message is not None and message.error() is None else []
    consumer.close()
    assert value in found


def test_confluent_kafka_reports_a_wrong_token(doors: Doors) -> None:
    told: list[KafkaError] = []
    producer = Producer({**with_tokens(doors, lambda: signed(doors, aud="x")), "error_cb": told.append})
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not any(error.code() == AUTHENTICATION for error in told):
        producer.poll(0.1)
    assert "invalid_token" in next(error.str() for error in told if error.code() == AUTHENTICATION)


def test_kafka_python_logs_in(doors: Doors) -> None:
    class Tokens(oauth.AbstractTokenProvider):
        def __init__(self, token: str) -> None:
            self._token = token

        def token(self) -> str:
            return self._token

        def extensions(self) -> dict[str, str]:
            return {"traceId": "1 2"}

    def producer(token: str, **more: object) -> KafkaProducer:
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
        tokens = Tokens(token)
        servers = doors.bootstrap("signed")
        return KafkaProducer(bootstrap_servers=servers, sasl_oauth_token_provider=tokens, **login, **more)

    right = producer(signed(doors))
    assert right.send(TOPIC, b"x").get(30).topic == TOPIC
    right.close()
    with pytest.raises(KafkaPythonError):
        producer(signed(doors, iss="x"), bootstrap_timeout_ms=2000).send(TOPIC, b"x").get(10)


def test_aiokafka_logs_in(doors: Doors) -> None:
    """aiokafka does not read the response to a wrong token, so the refusal shows only later."""

    class Tokens(AbstractTokenProvider):
        def __init__(self, token: str) -> None:
            self._token = token

        async def token(self) -> str:
            return self._token

    async def play() -> None:
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
        tokens = Tokens(signed(doors))
        producer = AIOKafkaProducer(
            bootstrap_servers=doors.bootstrap("signed"), sasl_oauth_token_provider=tokens, **login
        )
        await producer.start()
        assert (await producer.send_and_wait(TOPIC, b"x")).topic == TOPIC
        await producer.stop()

    asyncio.run(asyncio.wait_for(play(), 60))


def java(directory: Path, jaas: str, **more: str) -> tuple[str, str]:
    """The options for a tool to log in."""
    file = directory / "client.properties"
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": jaas}
    settings |= {name.replace("_", "."): text for name, text in more.items()}
    file.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    return "--command-config", str(file)


def test_kafkas_tools_log_in(doors: Doors, tmp_path: Path) -> None:
    jaas = f'{MODULE} required unsecuredLoginStringClaim_sub="ann" unsecuredLoginExtension_traceId="1";'
    options = java(tmp_path, jaas)
    assert TOPIC in tool("kafka-topics", "--list", *options, bootstrap=doors.bootstrap("open")).ok()
    refused = tool("kafka-topics", "--list", *options, bootstrap=doors.bootstrap("signed"))
    assert refused.code != 0
    assert INVALID in refused.out + refused.err


def test_kafkas_tools_log_in_with_a_token_from_a_file(
    doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(signed(doors))
    options = java(
        tmp_path,
        f"{MODULE} required;",
        sasl_login_callback_handler_class="org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        sasl_oauthbearer_jwt_retriever_class="org.apache.kafka.common.security.oauthbearer.FileJwtRetriever",
        sasl_oauthbearer_token_endpoint_url=file.as_uri(),
    )
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-D{ALLOWED}={file.as_uri()}")
    assert TOPIC in alone("kafka-topics", "--list", *options, bootstrap=doors.bootstrap("signed")).ok()


# ---- the exchange (RFC 7628)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_token_logs_in(doors: Doors, version: int) -> None:
    with doors.open("open") as raw:
        assert raw.handshake("OAUTHBEARER").mechanisms == ["OAUTHBEARER"]
        told = raw.token(first_message(unsecured(claims_of()), "ann", "x=y\x01traceId=1 \t\r\n2\x01"), version)
        assert (told.error_code, told.error_message or "", told.auth_bytes) == (0, "", b"")
        if version:
            assert (LIFETIME_S - 30) * 1000 < told.session_lifetime_ms <= LIFETIME_S * 1000


@pytest.mark.parametrize(
    "message",
    [
        b"",
        SEEN,
        b"junk",
        b"n,,\x01x=y\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer =\x01\x01",
        "n,,\x01auth=Bearer \u00e9\x01\x01".encode(),
        first_message(unsecured(claims_of())).replace(b"n,", b"y,", 1),
        first_message(unsecured(claims_of()))[:-1],
        first_message(unsecured(claims_of())) + b"\x01",
        first_message(unsecured(claims_of()), extensions="x1=y\x01"),
        first_message(unsecured(claims_of()), extensions="x=\x01"),
        first_message(unsecured(claims_of()), extensions="auth=x\x01"),
    ],
)
def test_an_invalid_first_message(doors: Doors, message: bytes) -> None:
    with doors.open("open") as raw:
        told = log_in(raw, message)
        assert (told.error_code, told.error_message, told.auth_bytes) == (FAILED, SHARED, b"")
        assert raw.is_closed()


def test_the_scheme_is_bearer(doors: Doors) -> None:
    """The scheme may be in upper or lower case. For another scheme, Apache Kafka closes the connection without a
    response."""
    message = first_message(unsecured(claims_of()))
    with doors.open("open") as raw:
        assert log_in(raw, message.replace(b"Bearer ", b"bEARER   ")).error_code == 0
    with doors.open("open") as raw, contextlib.suppress(ConnectionError):
        assert log_in(raw, message.replace(b"Bearer", b"Basic")).error_code == FAILED
        assert raw.is_closed()


@pytest.mark.parametrize("door", ["open", "signed"])
def test_an_authorization_id_is_the_name(doors: Doors, door: str) -> None:
    token = unsecured(claims_of()) if door == "open" else signed(doors)
    with doors.open(door) as raw:
        assert log_in(raw, first_message(token, "ann")).error_code == 0
    with doors.open(door) as raw:
        told = log_in(raw, first_message(token, "bob=2C"))
        assert (told.error_code, told.error_message) == (
            FAILED,
            "Authentication failed: Client requested an authorization id (bob=2C) that is different from the token's "
            "principal name (ann)",
        )
        assert raw.is_closed()


def test_a_client_may_send_another_token(doors: Doors) -> None:
    wrong = first_message(unsecured(claims_of(exp=1)))
    with doors.open("open") as raw:
        assert log_in(raw, wrong).auth_bytes == INVALID.encode()
        assert raw.token(wrong).auth_bytes == INVALID.encode()
        assert raw.token(first_message(unsecured(claims_of()), "ann")).error_code == 0
        assert raw.ask("Metadata", metadata.Request(topics=[])).brokers
    with doors.open("open") as raw:
        assert log_in(raw, wrong).auth_bytes == INVALID.encode()
        told = raw.token(b"x")
        assert (told.error_code, told.error_message) == (FAILED, SHARED)


def test_bare_tokens(doors: Doors) -> None:
    with doors.open("open") as raw:
        assert raw.handshake("OAUTHBEARER", 0).error_code == 0
        raw.send_frame(first_message(unsecured(claims_of())))
        assert raw.frame() == b""
        assert raw.ask("Metadata", metadata.Request(topics=[])).brokers
    with doors.open("open") as raw:
        raw.handshake("OAUTHBEARER", 0)
        raw.send_frame(first_message(unsecured(claims_of(exp=1))))
        assert raw.frame() == INVALID.encode()
        raw.send_frame(SEEN)
        assert raw.is_closed()


# ---- the lifetime of a login


def test_a_login_lasts_as_long_as_its_token(doors: Doors) -> None:
    """connections.max.reauth.ms may shorten the login. Either way it can be renewed, under the same name."""
    for lives_s, lasts_s in ((10, 10), (500, MAX_REAUTH_MS // 1000)):
        with doors.open("renewed") as raw:
            for _ in range(2):
                token = unsecured(claims_of(exp=int(time.time()) + lives_s))
                told = log_in(raw, first_message(token))
                assert told.error_code == 0
                assert (lasts_s - 6) * 1000 < told.session_lifetime_ms <= lasts_s * 1000
                assert raw.ask("Metadata", metadata.Request(topics=[])).brokers


def test_a_renewal_by_another_name_is_refused(doors: Doors) -> None:
    with doors.open("open") as raw:
        assert log_in(raw, first_message(unsecured(claims_of()))).error_code == 0
        told = log_in(raw, first_message(unsecured(claims_of("bob"))))
        said = "Cannot change principals during re-authentication from User.ann: User.bob"
        assert (told.error_code, told.error_message) == (FAILED, said)
        assert raw.is_closed()
    with doors.open("open") as raw:
        assert log_in(raw, first_message(unsecured(claims_of()))).error_code == 0
        assert log_in(raw, first_message(unsecured(claims_of(exp=1)))).auth_bytes == INVALID.encode()
        told = raw.token(SEEN)
        assert (told.error_code, told.error_message) == (FAILED, INVALID)


def test_an_expired_session_is_closed(doors: Doors) -> None:
    with doors.open("open") as raw:
        assert log_in(raw, first_message(unsecured(claims_of(exp=int(time.time()) + 3)))).error_code == 0
        assert is_served(raw)
        until(lambda: not is_served(raw), "the session has ended")


def test_a_token_that_is_valid_only_by_clock_skew_has_no_session(doors: Doors) -> None:
    now_s = int(time.time())
    for door, token in (
        ("scoped", unsecured(claims_of(name="ann", scp=["read", "write"], iat=now_s - 9, exp=now_s - 2))),
        ("loose", doors.provider.token(claims_of(who="ann", iat=now_s - 9, exp=now_s - 2))),
    ):
        with doors.open(door) as raw:
            told = log_in(raw, first_message(token))
            assert (told.error_code, told.auth_bytes, told.session_lifetime_ms) == (0, b"", 0)
            until(lambda raw=raw: not is_served(raw), "the session has ended")


# ---- unsecured tokens


def text(claims: str) -> str:
    """A token whose claims are written by hand."""
    return unsecured(claims.replace("NOW", str(int(time.time()))))


@pytest.mark.parametrize(
    ("door", "token", "said"),
    [
        ("open", lambda now: unsecured(claims_of(exp=now + 60.5, iat=now - 0.5)), ""),
        ("open", lambda now: unsecured(claims_of(iat=None, scope=["a", "a"])), ""),
        ("open", lambda now: unsecured(claims_of(" ann ", scope="")), ""),
        ("open", lambda now: unsecured(claims_of(exp=now - 1)), INVALID),
        ("open", lambda now: unsecured(claims_of(exp=None)), INVALID),
        ("open", lambda now: unsecured(claims_of(exp=str(now + 60))), INVALID),
        ("open", lambda now: unsecured(claims_of(exp=True)), INVALID),
        ("open", lambda now: text('{"sub":"ann","exp":NaN}'), INVALID),
        ("open", lambda now: unsecured(claims_of(iat=now + 60)), INVALID),
        ("open", lambda now: unsecured(claims_of(iat="x")), INVALID),
        ("open", lambda now: unsecured(claims_of(sub=3)), INVALID),
        ("open", lambda now: unsecured(claims_of(sub=None)), INVALID),
        ("open", lambda now: unsecured(claims_of(" ")), INVALID),
        ("open", lambda now: unsecured(claims_of(scope=3)), INVALID),
        ("open", lambda now: unsecured(claims_of(), {"alg": "RS256"}), INVALID),
        ("open", lambda now: unsecured(claims_of(), {"alg": "None"}), INVALID),
        ("open", lambda now: unsecured(claims_of(), signature="abcd"), INVALID),
        ("open", lambda now: unsecured(claims_of())[:-1], INVALID),
        ("open", lambda now: unsecured(claims_of()) + ".", INVALID),
        ("open", lambda now: "abc", INVALID),
        ("open", lambda now: "~~~.~~~.", INVALID),
        ("open", lambda now: text('{"sub"'), INVALID),
        ("open", lambda now: text("[" * 5000), INVALID),
        ("scoped", lambda now: unsecured(claims_of(name="ann", scp=["x", " read ", "write", ""])), ""),
        ("scoped", lambda now: unsecured(claims_of(name="ann", scp=["read", "write"], iat=now + 15)), ""),
        (
            "scoped",
            lambda now: unsecured(claims_of(name="ann", scp=["read", "write"], exp=now + 5, iat=now + 6)),
            INVALID,
        ),
        ("scoped", lambda now: unsecured(claims_of(scp=["read", "write"])), INVALID),
        ("scoped", lambda now: unsecured(claims_of(name="ann")), LACKS_SCOPE),
        ("scoped", lambda now: unsecured(claims_of(name="ann", scp="read write")), LACKS_SCOPE),
        ("scoped", lambda now: unsecured(claims_of(name="ann", scp=["write"])), LACKS_SCOPE),
    ],
)
def test_unsecured_tokens(doors: Doors, door: str, token: Callable[[int], str], said: str) -> None:
    assert said_of(doors, door, token(int(time.time()))) == said


@pytest.mark.parametrize(
    "token",
    [
        lambda now: unsecured(claims_of(), {}),
        lambda now: unsecured(claims_of(), {"alg": None}),
        lambda now: unsecured(claims_of(), [1]),
        lambda now: unsecured(claims_of(exp=1e300)),
        lambda now: unsecured(claims_of(exp=now + 1000 * 366 * 86_400)),
    ],
)
def test_tokens_that_make_apache_kafka_fail_are_refused(doors: Doors, token: Callable[[int], str]) -> None:
    """Apache Kafka closes the connection."""
    with doors.open("open") as raw, contextlib.suppress(ConnectionError):
        assert log_in(raw, first_message(token(int(time.time())))).auth_bytes == INVALID.encode()
        assert raw.token(SEEN).error_message == INVALID


# ---- signed tokens


@pytest.mark.parametrize("kid", SIGNING)
def test_the_algorithms_of_signatures(doors: Doors, kid: str) -> None:
    claims = claims_of(who=kid)
    assert logs_in(doors, "loose", doors.provider.token(claims, kid))
    assert not logs_in(doors, "loose", doors.provider.token(claims, kid)[:-8] + "AAAAAAAA")


def of_signed(doors: Doors, **changed: object) -> dict[str, object]:
    return claims_of(**{"aud": AUDIENCE, "iss": ISSUER, **changed})


@pytest.mark.parametrize(
    ("changed", "is_in"),
    [
        ({}, True),
        ({"aud": ["x", "other"]}, True),
        ({"aud": None}, False),
        ({"aud": "x"}, False),
        ({"aud": []}, False),
        ({"aud": [3]}, False),
        ({"aud": 3}, False),
        ({"iss": None}, False),
        ({"iss": ISSUER + "/"}, False),
        ({"iss": [ISSUER]}, False),
        ({"sub": None}, False),
        ({"sub": ""}, False),
        ({"sub": 3}, False),
    ],
)
def test_audience_and_issuer(doors: Doors, changed: dict[str, object], is_in: bool) -> None:
    assert logs_in(doors, "signed", signed(doors, **changed)) == is_in


@pytest.mark.parametrize(
    ("changed", "is_in"),
    [
        ({"iss": "anybody", "jti": "1"}, True),
        ({"who": " ann "}, True),
        ({"aud": "kafka"}, False),
        ({"aud": []}, False),
        ({"who": None}, False),
        ({"who": ["ann"]}, False),
        ({"sub": 3}, False),
        ({"iss": 3}, False),
        ({"jti": 3}, False),
        ({"scp": "a b"}, True),
        ({"scp": ["a", "b"]}, True),
        ({"scp": 3}, True),
        ({"scp": ["a", " a"]}, False),
        ({"scp": ""}, False),
        ({"scp": ["a", " "]}, False),
    ],
)
def test_other_claims(doors: Doors, changed: dict[str, object], is_in: bool) -> None:
    token = doors.provider.token(claims_of(**{"who": "ann", **changed}))
    assert logs_in(doors, "loose", token) == is_in


@pytest.mark.parametrize(
    ("times", "is_in"),
    [
        ({"exp": -30}, False),
        ({"exp": 100.9, "iat": -0.9}, True),
        ({"iat": 100}, True),
        ({"iat": 400}, False),
        ({"nbf": 5}, True),
        ({"nbf": 60}, False),
        ({"nbf": 400}, False),
        ({"iat": -(10**10)}, False),
    ],
)
def test_times(doors: Doors, times: dict[str, float], is_in: bool) -> None:
    """`times` are in seconds from now. The clock skew is 10 s."""
    now_s = int(time.time())
    claims = claims_of(who="ann", **{name: now_s + offset for name, offset in times.items()})
    assert logs_in(doors, "loose", doors.provider.token(claims)) == is_in


@pytest.mark.parametrize("changed", [{"exp": None}, {"iat": None}, {"exp": "1"}, {"nbf": "1"}, {"exp": 10**30}])
def test_times_must_be_present_and_numbers(doors: Doors, changed: dict[str, object]) -> None:
    assert not logs_in(doors, "loose", doors.provider.token(claims_of(**{"who": "ann", **changed})))


@pytest.mark.parametrize(
    ("kid", "header", "is_in"),
    [
        ("RS256", {"alg": "RS256"}, True),
        ("ES512", {"alg": "ES512"}, True),
        ("RS256", {"alg": "RS256", "kid": "RS256", "typ": "at+jwt", "x5t": "abc", "jwk": {}}, True),
        ("RS256", {"alg": "RS256", "kid": "RS384"}, False),
        ("RS256", {"alg": "RS256", "kid": "ES256"}, False),
        ("RS256", {"alg": "RS256", "kid": "RS256", "crit": ["exp"], "exp": 1}, False),
        ("RS256", {"alg": "RS256", "kid": "RS256", "b64": False}, False),
        ("RS256", {"kid": "RS256"}, False),
        ("RS256", {"alg": "none"}, False),
        ("RS256", {"alg": "none", "kid": "RS256"}, False),
        ("RS256", {"alg": "XX256", "kid": "RS256"}, False),
        ("HS256", {"alg": "HS256", "kid": "RS256"}, False),
        ("short", {"alg": "RS256", "kid": "short"}, False),
        ("unknown", {"alg": "RS256", "kid": "unknown"}, False),
        ("unknown", {"alg": "RS256", "kid": "RS256"}, False),
    ],
)
def test_headers(doors: Doors, kid: str, header: dict[str, object], is_in: bool) -> None:
    assert logs_in(doors, "loose", doors.provider.token(claims_of(who="ann"), kid, header)) == is_in


def test_a_key_without_an_algorithm_is_for_any(doors: Doors) -> None:
    assert logs_in(doors, "loose", doors.provider.token(claims_of(who="ann"), "RS256", alg="PS512"))


@pytest.mark.parametrize("token", ["abc", "a.b.c", "a..c", "..", "eyJhbGciOiJSUzI1NiJ9.e30.", "a.b.c.d.e"])
def test_an_invalid_token(doors: Doors, token: str) -> None:
    for door in ("signed", "loose", "remote"):
        assert said_of(doors, door, token) == INVALID
    assert said_of(doors, "loose", unsecured(claims_of(who="ann"))) == INVALID


# ---- keys


def test_a_file_of_keys_is_read_again(doors: Doors) -> None:
    """The file is read again at the next login. While it cannot be read, no client can log in."""
    before = doors.keys.read_text()
    token, renewed = signed(doors), doors.provider.token(of_signed(doors), "unknown")
    assert logs_in(doors, "signed", token)
    try:
        write(doors.keys, doors.provider.key_set(doors.provider.row("unknown")))
        assert logs_in(doors, "signed", renewed)
        write(doors.keys, '{"keys": [')
        assert not logs_in(doors, "signed", token)
        doors.keys.unlink()
        assert not logs_in(doors, "signed", token)
    finally:
        write(doors.keys, before)
    assert logs_in(doors, "signed", token)
    assert not logs_in(doors, "signed", renewed)


def write(path: Path, content: str) -> None:
    """Replace a file with one that has a later time, which Java reads in milliseconds."""
    new = path.with_suffix(".new")
    new.write_text(content)
    later_ns = time.time_ns() + next(LATER) * 10_000_000
    os.utime(new, ns=(later_ns, later_ns))
    new.replace(path)


LATER = iter(range(1000))


def test_keys_at_a_url_are_requested_again(doors: Doors) -> None:
    """The keys are requested when a token names a missing key, but not each time."""
    provider, server = doors.remote, doors.server
    for kid in ("RS256", "ES256"):
        assert logs_in(doors, "remote", provider.token(claims_of(), kid))
    provider.add("new", "RS512")
    provider.shown[:] = ["new"]
    server.show("/keys", provider.key_set())
    new, old = provider.token(claims_of(), "new"), provider.token(claims_of(), "RS256")
    assert not logs_in(doors, "remote", new)
    until(lambda: logs_in(doors, "remote", new), "the new key is known")
    assert not logs_in(doors, "remote", old)
    provider.add("hidden", "RS256")
    asked = server.asked.count("/keys")
    for _ in range(5):
        assert not logs_in(doors, "remote", provider.token(claims_of(), "hidden"))
    assert server.asked.count("/keys") <= asked + 2, "at most for each name once a minute"


def test_keys_stay_when_a_url_returns_nothing_useful(doors: Doors) -> None:
    provider, server = doors.remote, doors.server
    kid = provider.shown[0]
    for number, (status, body) in enumerate(((500, ""), (200, "{"), (200, '{"keys": 3}'))):
        server.show("/keys", body, status)
        asked = len(server.asked)
        provider.add(f"absent-{number}", "ES256")
        assert not logs_in(doors, "remote", provider.token(claims_of(), f"absent-{number}"))
        until(lambda before=asked: len(server.asked) > before, "the address was asked")
        assert logs_in(doors, "remote", provider.token(claims_of(), kid))
    server.show("/keys", provider.key_set())


# ---- a start


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", "{}", '{"keys": {}}', '{"keys": [3]}'], ids=lambda content: repr(content)
)
def test_a_file_without_keys_stops_the_start(target_name: str, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    broker, _ = broker_of(target_name, settings_of(file.as_uri(), file.as_uri()), file.as_uri())
    with pytest.raises(NotStarted, match=r"keys\.json"):
        broker.start()
    broker.remove()


def test_a_url_without_a_response_stops_the_start(target_name: str, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text('{"keys": []}')
    with KeyServer() as server:
        for url in (server.show("/none", "", 404), "http://127.0.0.1:1/keys"):
            broker, _ = broker_of(target_name, settings_of(file.as_uri(), url), file.as_uri(), url)
            with pytest.raises(NotStarted):
                broker.start()
            broker.remove()


def test_a_handler_without_keys_stops_the_start(target_name: str, tmp_path: Path) -> None:
    settings = settings_of("", "")
    broker, _ = broker_of(target_name, {name: text for name, text in settings.items() if text})
    with pytest.raises(NotStarted, match=r"jwks\.endpoint\.url"):
        broker.start()
    broker.remove()
