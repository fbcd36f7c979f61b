"""OAUTHBEARER logins on a real node: starts with and without keys, log lines, and keys that cannot be fetched."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from kpybroker.config import parse_properties
from kpybroker.config.oauth_settings import HANDLER_OF_SIGNED
from kpybroker.errors import ConfigError, ErrorCode
from kpybroker.security.sasl import http_get, refreshing_keys
from kpybroker.server.node import Node
from kpybroker.wire.rpc import metadata, sasl_handshake
from kpybroker.wire.rpc import sasl_authenticate as rpc
from oracle.identity_provider import IdentityProvider, KeyServer, claims_of, first_message, unsecured
from tests.certificates import sign
from tests.server.raw import Raw, raw
from tests.serving import serving

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
UNSECURED = {
    "listeners": "CLIENTS://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.clients.oauthbearer.sasl.jaas.config": f"{MODULE} required;",
    "connection.failed.authentication.delay.ms": "0",
}
SIGNED = {**UNSECURED, "listener.name.clients.oauthbearer.sasl.server.callback.handler.class": HANDLER_OF_SIGNED}
URL = "sasl.oauthbearer.jwks.endpoint.url"
PROVIDER = IdentityProvider("ES256", "ES384")
LIFETIME_MS = 300_000


def play(path: Path, settings: dict[str, str], scenario: Callable[[Node], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with serving(path / "data", settings) as node:
            await scenario(node)

    asyncio.run(asyncio.wait_for(whole(), 60))


async def nothing(node: Node) -> None:
    """Do nothing: the test is that the node has started."""


async def log_in(connection: Raw, token: str) -> rpc.Response:
    connection.ask(1, "SaslHandshake", sasl_handshake.Request(mechanism="OAUTHBEARER"), 1)
    assert (await connection.answer("SaslHandshake", 1))[1].error_code == 0
    return await answer(connection, first_message(token))


async def answer(connection: Raw, data: bytes) -> rpc.Response:
    connection.ask(2, "SaslAuthenticate", rpc.Request(auth_bytes=data), 1)
    told: rpc.Response = (await connection.answer("SaslAuthenticate", 1))[1]
    return told


async def gets_in(node: Node, token: str) -> bool:
    async with raw(node) as connection:
        told = await log_in(connection, token)
        if told.auth_bytes:
            assert (await answer(connection, b"\x01")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await connection.closed()
            return False
        assert 0 < told.session_lifetime_ms <= LIFETIME_MS
        connection.ask(3, "Metadata", metadata.Request(topics=[]), 1)
        assert (await connection.answer("Metadata", 1))[1].brokers
        assert [str(each.principal) for each in node.server.connections()] == ["User:ann"]
        return True


def test_a_warning_about_unsecured_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: Node) -> None:
        assert await gets_in(node, unsecured(claims_of()))
        assert not await gets_in(node, PROVIDER.token(claims_of()))

    play(tmp_path, UNSECURED, scenario)
    assert "listener CLIENTS accepts unsecured tokens: any client can log in under any name" in caplog.text


def test_keys_from_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log states which settings are missing, but contains no part of any token."""
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "keys.json"
    file.write_text(PROVIDER.key_set({"kty": "XX"}))
    token, wrong = PROVIDER.token(claims_of()), PROVIDER.token(claims_of(exp=1))

    async def scenario(node: Node) -> None:
        assert await gets_in(node, token)
        assert not await gets_in(node, wrong)
        assert not await gets_in(node, unsecured(claims_of()))
        file.write_text(PROVIDER.key_set(PROVIDER.row("ES384")).replace('"ES256"', '"other"'))
        assert not await gets_in(node, token)
        assert node.server.metrics.logins_failed == 3

    play(tmp_path, {**SIGNED, URL: file.as_uri()}, scenario)
    assert "loaded 2 token keys" in caplog.text
    assert "1 keys are not used" in caplog.text
    assert "expected.audience is not set, so only tokens without an audience are accepted" in caplog.text
    assert "expected.issuer is not set, so tokens of any issuer are accepted" in caplog.text
    assert "login with OAUTHBEARER failed: the token is refused: it has expired" in caplog.text
    for part in (*token.split("."), *wrong.split(".")):
        assert part not in caplog.text


def test_without_the_library_signed_tokens_stop_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    play(tmp_path, UNSECURED, nothing)
    with pytest.raises(ConfigError, match=r"listener CLIENTS: signed tokens need .* pip install 'kpybroker\[oauth\]'"):
        play(tmp_path, {**SIGNED, URL: "file:///x"}, nothing)


def test_a_start_without_keys_formats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_get, "PATIENCE_S", 0.2)
    none = {
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "0",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "0",
    }
    with KeyServer() as server, socket.create_server(("127.0.0.1", 0)) as silent:
        for url, said in (
            (server.show("/a", "", 500), "returned status 500"),
            (server.show("/b", "x"), "it is not JSON"),
            ("http://127.0.0.1:1/", "Connect call failed"),
            (f"http://127.0.0.1:{silent.getsockname()[1]}/", "no response within"),
            (f"https://127.0.0.1:{silent.getsockname()[1]}/", "no response within"),
            ((tmp_path / "absent").as_uri(), "No such file"),
        ):
            with pytest.raises(ConfigError, match=f"listener CLIENTS: sasl.oauthbearer.jwks.endpoint.url=.*{said}"):
                play(tmp_path, {**SIGNED, **none, URL: url}, nothing)
            assert not (tmp_path / "data").exists()


@pytest.fixture
def secure_server(tmp_path: Path) -> Iterator[KeyServer]:
    """An https address. The certificate authority of the server is in ca.pem."""
    authority = sign("authority")
    (tmp_path / "ca.pem").write_text(authority.chain_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sign("server", authority).pem(tmp_path / "server.pem"))
    with KeyServer(context) as server:
        yield server


def test_keys_are_fetched_by_https_from_a_trusted_server(tmp_path: Path, secure_server: KeyServer) -> None:
    async def scenario(node: Node) -> None:
        assert await gets_in(node, PROVIDER.token(claims_of()))

    settings = {
        **SIGNED,
        URL: secure_server.show("/keys", PROVIDER.key_set()),
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "0",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "0",
    }
    trusting = f'{MODULE} required ssl.truststore.type="PEM" ssl.truststore.location="{tmp_path / "ca.pem"}";'
    play(tmp_path, {**settings, "listener.name.clients.oauthbearer.sasl.jaas.config": trusting}, scenario)
    with pytest.raises(ConfigError, match="CERTIFICATE_VERIFY_FAILED"):
        play(tmp_path, settings, nothing)
    absent = trusting.replace("ca.pem", "absent.pem")
    with pytest.raises(
        ConfigError, match=r"listener CLIENTS: the ssl\.\* options in sasl\.jaas\.config: .*absent\.pem"
    ):
        play(tmp_path, {**settings, "listener.name.clients.oauthbearer.sasl.jaas.config": absent}, nothing)


def test_nothing_waits_for_keys_that_do_not_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the key server does not respond, clients can log in with known keys, and the node stops without waiting."""
    monkeypatch.setattr(refreshing_keys, "AGAIN_AFTER_S", 0)
    PROVIDER.add("new", "ES256")
    with KeyServer() as server, socket.create_server(("127.0.0.1", 0)) as silent:
        url = server.show("/keys", PROVIDER.key_set())
        silent_url = f"http://127.0.0.1:{silent.getsockname()[1]}/"

        async def scenario(node: Node) -> None:
            server.show("/keys", "", 302, Location=silent_url)
            assert not await gets_in(node, PROVIDER.token(claims_of(), "new"))
            loop = asyncio.get_running_loop()
            silent.setblocking(False)
            asking, _ = await loop.sock_accept(silent)
            with asking:
                assert await gets_in(node, PROVIDER.token(claims_of(), "ES384"))
                assert not await gets_in(node, PROVIDER.token(claims_of(), "new"))
                assert not node.failed.done()

        play(tmp_path, {**SIGNED, URL: url}, scenario)


def test_the_example_in_the_documentation_works(tmp_path: Path, secure_server: KeyServer) -> None:
    """Only its files and its URL are replaced by those of this test."""
    page = (Path(__file__).parents[2] / "docs" / "security-sasl.md").read_text()
    [example] = [each for each in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "OAuthBearerLoginModule" in each]
    of_clients = "listener.name.clients."
    module = f'{MODULE} required ssl.truststore.type="PEM" ssl.truststore.location="{tmp_path / "ca.pem"}";'
    own = {
        "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "advertised.listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        f"{of_clients}ssl.keystore.location": str(tmp_path / "server.pem"),
        f"{of_clients}oauthbearer.sasl.jaas.config": module,
        f"{of_clients}oauthbearer.{URL}": secure_server.show("/keys", PROVIDER.key_set()),
    }

    async def scenario(node: Node) -> None:
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        port = node.advertised[0].port
        for audience, is_in in (("kafka", True), ("other", False)):
            connection = Raw(*await asyncio.open_connection("127.0.0.1", port, ssl=context))
            token = PROVIDER.token(claims_of(aud=audience, iss="https://login.example.org"))
            assert (not (await log_in(connection, token)).auth_bytes) == is_in
            connection.writer.close()

    play(tmp_path, {**parse_properties(example, "security-sasl.md"), **own}, scenario)


def test_a_new_key_is_known_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refreshing_keys, "AGAIN_AFTER_S", 0)
    provider = IdentityProvider("ES256")
    with KeyServer() as server:
        url = server.show("/keys", provider.key_set())
        provider.add("next", "EdDSA")
        provider.shown[:] = ["next"]

        async def scenario(node: Node) -> None:
            server.show("/keys", provider.key_set())
            token = provider.token(claims_of())
            assert not await gets_in(node, token)
            while not await gets_in(node, token):
                await asyncio.sleep(0)
            assert not await gets_in(node, provider.token(claims_of(), "ES256"))

        play(tmp_path, {**SIGNED, URL: url}, scenario)
