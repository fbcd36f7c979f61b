"""TLS listeners: which clients are accepted, the log lines about other clients, and the limits on handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from kpybroker.client.dialer import Dialer
from kpybroker.client.peer import Peer
from kpybroker.config.login import Login
from kpybroker.errors import ConfigError, ErrorCode
from kpybroker.security.tls import contexts
from kpybroker.security.tls.jks import read_jks
from kpybroker.server import server
from kpybroker.server.node import Node
from kpybroker.wire.rpc import alter_client_quotas, incremental_alter_configs
from tests.certificates import Signed, sign
from tests.serving import dialled, serving

LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
}
STORES = Path(__file__).parent.parent / "security" / "stores"
AUTHORITY = sign("authority")
SERVER = sign("server", AUTHORITY)
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)


def stores(directory: Path, **more: str) -> dict[str, str]:
    trusted = directory / "ca.pem"
    trusted.write_text(AUTHORITY.chain_pem)
    return {
        **LISTENERS,
        "ssl.keystore.location": str(SERVER.pem(directory / "server.pem")),
        "ssl.truststore.location": str(trusted),
        **{name.replace("_", "."): text for name, text in more.items()},
    }


def trusting(client: Signed | None = None, directory: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=AUTHORITY.chain_pem)
    if client is not None and directory is not None:
        context.load_cert_chain(client.pem(directory / "client.pem"))
    return context


async def asked(node: Node, context: ssl.SSLContext | None, *, sends: bytes = API_VERSIONS) -> bytes:
    """The first bytes that the TLS listener sends; no bytes if it closes the connection."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", node.advertised[1].port, ssl=context, server_hostname="localhost" if context else None
    )
    try:
        writer.write(sends)
        return await reader.read(8)
    finally:
        writer.close()


def run(play: Callable[[Node], Awaitable[None]], directory: Path, settings: dict[str, str]) -> None:
    async def whole() -> None:
        async with serving(directory / "data", settings) as node:
            await play(node)

    asyncio.run(asyncio.wait_for(whole(), 60))


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("kind", ["pem", "encrypted", "inline", "pkcs12", "jks", "prefixed"])
def test_a_request_is_answered_over_tls_with_every_kind_of_store(tmp_path: Path, kind: str) -> None:
    settings = stores(tmp_path)
    if kind == "encrypted":
        settings["ssl.keystore.location"] = str(SERVER.pem(tmp_path / "locked.pem", "hush"))
        settings["ssl.key.password"] = "hush"
    elif kind == "inline":
        del settings["ssl.keystore.location"]
        settings |= {"ssl.keystore.key": SERVER.key_pem(), "ssl.keystore.certificate.chain": SERVER.chain_pem}
    elif kind == "pkcs12":
        settings["ssl.keystore.location"] = str(SERVER.pkcs12(tmp_path / "server.p12", "hush"))
        settings |= {"ssl.keystore.type": "JKS", "ssl.keystore.password": "hush"}
    elif kind == "jks":
        shutil.copy(STORES / "key.jks", tmp_path)
        (tmp_path / "key.jks").chmod(0o600)
        settings["ssl.keystore.location"] = str(tmp_path / "key.jks")
        settings |= {"ssl.keystore.type": "JKS", "ssl.keystore.password": "storepass", "ssl.key.password": "keypass1"}
    elif kind == "prefixed":
        settings["listener.name.ssl.ssl.keystore.location"] = settings["ssl.keystore.location"]
        settings["ssl.keystore.location"] = "/nowhere"

    async def play(node: Node) -> None:
        context = trusting()
        if kind == "jks":
            context.load_verify_locations(cadata=read_jks((STORES / "trust.jks").read_bytes(), None).trusted[0])
        assert (await asked(node, context))[4:8] == struct.pack(">i", 7)

    run(play, tmp_path, settings)


def test_the_principal_is_the_name_in_the_certificate(tmp_path: Path) -> None:
    async def play(node: Node) -> None:
        context = trusting(sign("alice", AUTHORITY), tmp_path)
        reader, writer = await asyncio.open_connection("localhost", node.advertised[1].port, ssl=context)
        writer.write(API_VERSIONS)
        await reader.readexactly(8)
        assert [str(each.principal) for each in node.server.connections()] == ["User:alice"]
        writer.close()

    rules = r"RULE:^CN=(.*?),O=Tests$/$1/,DEFAULT"
    run(play, tmp_path, stores(tmp_path, ssl_client_auth="required", ssl_principal_mapping_rules=rules))


def test_a_name_that_no_rule_matches_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play(node: Node) -> None:
        assert await asked(node, trusting(sign("bob", AUTHORITY), tmp_path)) == b""

    run(play, tmp_path, stores(tmp_path, ssl_client_auth="required", ssl_principal_mapping_rules="RULE:^CN=al.*/x/"))
    assert "no rule of ssl.principal.mapping.rules matches" in said(caplog)


async def _ends(asking: Awaitable[bytes]) -> None:
    with contextlib.suppress(OSError):  # with TLS 1.3, a client receives the refusal when it reads
        assert await asking == b""


def test_the_log_says_why_a_handshake_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play(node: Node) -> None:
        for context in (None, trusting(), trusting(sign("eve", sign("other")), tmp_path)):
            await _ends(asked(node, context))

    with caplog.at_level(logging.WARNING):
        run(play, tmp_path, stores(tmp_path, ssl_client_auth="required"))
    told = said(caplog)
    assert "it did not use TLS, but this listener does; set security.protocol=SSL (or SASL_SSL) in the client" in told
    assert "it presented no certificate, but this listener has ssl.client.auth=required" in told
    assert "this broker does not trust its certificate" in told


@pytest.mark.parametrize(
    ("server", "trusted", "why"),
    [
        (sign("s", AUTHORITY), sign("stranger"), "it does not trust the authority of this broker's certificate"),
        (sign("s", AUTHORITY, days=-1), AUTHORITY, "this broker's certificate has expired; put a new one into"),
        (sign("s", AUTHORITY, hosts=["other"]), AUTHORITY, "probably has another host name than the client dialled"),
    ],
    ids=["another authority", "expired", "another host"],
)
def test_the_log_says_why_a_client_refuses_the_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, server: Signed, trusted: Signed, why: str
) -> None:
    def dial(port: int) -> None:
        """Connect with a blocking socket, because asyncio closes connections without an alert."""
        context = ssl.create_default_context(cadata=trusted.chain_pem)
        with socket.create_connection(("127.0.0.1", port)) as plain, pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(plain, server_hostname="localhost")

    async def play(node: Node) -> None:
        await asyncio.get_running_loop().run_in_executor(None, dial, node.advertised[1].port)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asked(node, ssl.create_default_context(cadata=trusted.chain_pem))
        checks_nothing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        checks_nothing.check_hostname, checks_nothing.verify_mode = False, ssl.CERT_NONE
        assert (await asked(node, checks_nothing))[4:8] == struct.pack(">i", 7)

    run(play, tmp_path, stores(tmp_path, ssl_keystore_location=str(server.pem(tmp_path / "other.pem"))))
    assert why in said(caplog)
    assert "it closed the connection without an alert, as asyncio does if it does not accept this" in said(caplog)


def test_stalled_handshakes_are_bounded_and_others_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 5
    monkeypatch.setattr(server, "HANDSHAKES_MAX", limit)

    async def play(node: Node) -> None:
        port = node.advertised[1].port
        stalled = [await asyncio.open_connection("127.0.0.1", port) for _ in range(limit + 3)]
        for reader, _ in stalled[:3]:  # the oldest ones are closed
            assert await reader.read() == b""
        assert await asked(node, trusting())
        for _, writer in stalled:
            writer.close()

    run(play, tmp_path, stores(tmp_path))


def test_a_connection_above_a_limit_costs_no_handshake(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in Apache Kafka, connections are counted when they are accepted, before the handshake."""

    async def play(node: Node) -> None:
        port = node.advertised[1].port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(), server_hostname="localhost")
        writer.write(API_VERSIONS)
        await reader.readexactly(8)
        with pytest.raises(OSError):
            await asked(node, trusting())
        writer.close()

    with caplog.at_level(logging.WARNING):
        run(play, tmp_path, stores(tmp_path, max_connections_per_ip="1"))
    assert "refused connection from 127.0.0.1: max.connections.per.ip reached" in said(caplog)
    assert "handshake" not in said(caplog)


def test_the_rate_of_an_address_counts_before_the_handshake(tmp_path: Path) -> None:
    async def play(node: Node) -> None:
        async with dialled(node) as peer:
            entry = alter_client_quotas.EntryData(
                entity=[alter_client_quotas.EntityData(entity_type="ip", entity_name="127.0.0.1")],
                ops=[alter_client_quotas.OpData(key="connection_creation_rate", value=1.0)],
            )
            await peer.ask("AlterClientQuotas", alter_client_quotas.Request(entries=[entry]))
        stalled = [await asyncio.open_connection("127.0.0.1", node.advertised[1].port) for _ in range(40)]
        await until(lambda: node.server.metrics.connections_throttled > 0)
        assert not node.server.connections()
        for _, writer in stalled:
            writer.close()

    run(play, tmp_path, stores(tmp_path))


def _broken(directory: Path) -> dict[str, tuple[dict[str, str], str]]:
    whole = SERVER.pem(directory / "whole.pem")
    cut = directory / "cut.pem"
    cut.write_text(whole.read_text()[:200])
    cut.chmod(0o600)
    others = directory / "others.pem"
    others.write_text(SERVER.key_pem() + sign("other", AUTHORITY).chain_pem)
    others.chmod(0o600)
    shown = SERVER.pem(directory / "shown.pem")
    shown.chmod(0o644)
    java = directory / "old.jks"
    shutil.copy(STORES / "key.jks", java)
    java.chmod(0o600)
    of_java = {"ssl_keystore_type": "JKS", "ssl_keystore_password": "storepass"}
    locked = SERVER.pem(directory / "locked.pem", "hush")
    store = SERVER.pkcs12(directory / "server.p12", "hush")

    def at(path: Path, **more: Any) -> dict[str, str]:
        return {"ssl.keystore.location": str(path), **{name.replace("_", "."): text for name, text in more.items()}}

    return {
        "missing": (at(directory / "none.pem"), "No such file"),
        "cut": (at(cut), "no complete private key"),
        "others": (at(others), "is not that of the key"),
        "shown": (at(shown), f"chmod o-rwx {shown}"),
        "jks wrongly": (at(java, **{**of_java, "ssl_keystore_password": "loud"}), "ssl.keystore.password is not"),
        "jks key": (at(java, **of_java, ssl_key_password="loud"), "ssl.key.password is not its password"),
        "locked": (at(locked), "set ssl.key.password"),
        "locked wrongly": (at(locked, ssl_key_password="loud"), "ssl.key.password is not its password"),
        "store": (at(store, ssl_keystore_type="PKCS12", ssl_keystore_password="loud"), "ssl.keystore.password is not"),
        "kind": (at(store), "its type is set to PEM, but it is PKCS12 or JKS"),
        "suite": (at(whole, ssl_cipher_suites="TLS_RSA_WITH_RC4_128_MD5"), "is not served; name some of"),
        "version": (at(whole, ssl_enabled_protocols="TLSv1.1"), "name TLSv1.2 or TLSv1.3"),
        "rules": (
            at(whole, ssl_principal_mapping_rules="RULE:(?<n>x)/$1/"),
            "is not a regular expression for Python",
        ),
    }


@pytest.mark.parametrize(
    "what",
    [
        "missing",
        "cut",
        "others",
        "shown",
        "jks wrongly",
        "jks key",
        "locked",
        "locked wrongly",
        "store",
        "kind",
        "suite",
        "version",
        "rules",
    ],
)
def test_unsupported_settings_are_refused_at_start_with_the_remedy(tmp_path: Path, what: str) -> None:
    settings, reason = _broken(tmp_path)[what]

    async def play(node: Node) -> None:
        raise AssertionError(node)

    with pytest.raises(ConfigError) as refused:
        run(play, tmp_path, {**stores(tmp_path), **settings})
    assert reason in str(refused.value)
    assert str(refused.value).startswith("listener SSL: ")
    assert "loud" not in str(refused.value)
    assert not (tmp_path / "data").exists(), "nothing was formatted"


async def certificate_of(node: Node, context: ssl.SSLContext) -> bytes:
    """The certificate that the TLS listener currently presents, as DER."""
    port = node.advertised[1].port
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    try:
        shown: bytes = writer.get_extra_info("ssl_object").getpeercert(True)
        return shown
    finally:
        writer.close()


def test_a_changed_file_is_used_for_new_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(contexts, "LOOKED_EVERY_MS", 0)
    renewed = sign("renewed", AUTHORITY)

    async def play(node: Node) -> None:
        store = tmp_path / "server.pem"
        before = await certificate_of(node, trusting())
        assert before == SERVER.certificate.public_bytes(Encoding.DER)
        store.write_text("half a file")
        assert await certificate_of(node, trusting()) == before
        store.unlink()
        os.mkfifo(store, 0o600)  # opening it would wait for ever
        assert await certificate_of(node, trusting()) == before
        store.unlink()
        renewed.pem(store)
        assert await certificate_of(node, trusting()) == renewed.certificate.public_bytes(Encoding.DER)
        (tmp_path / "ca.pem").write_text(sign("other").chain_pem)
        await _ends(asked(node, trusting(sign("alice", AUTHORITY), tmp_path)))

    run(play, tmp_path, stores(tmp_path, ssl_client_auth="requested"))
    told = said(caplog)
    assert "the changed stores are not used, and the previous ones stay in use: ssl.keystore.location=" in told
    assert "this broker does not trust its certificate" in told


def test_stores_of_one_listener_change_while_the_broker_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "LOOKED_EVERY_MS", 0)
    renewed = sign("renewed", AUTHORITY)
    location = "listener.name.ssl.ssl.keystore.location"
    password = "listener.name.ssl.ssl.keystore.password"
    store = {
        location: str(renewed.pkcs12(tmp_path / "renewed.p12", "hush")),
        "listener.name.ssl.ssl.keystore.type": "PKCS12",
        password: "hush",
    }

    async def play(node: Node) -> None:
        async with dialled(node) as peer:
            before = await certificate_of(node, trusting())
            for wrong, reason in (
                ({**store, password: "loud"}, "ssl.keystore.password is not its password"),
                ({location: "/nowhere"}, "ssl.keystore.location=/nowhere: No such file"),
            ):
                told = await altered(peer, wrong)
                assert told.error_code == ErrorCode.INVALID_REQUEST
                assert told.error_message.startswith("listener SSL: ")
                assert reason in told.error_message
                assert "loud" not in told.error_message
                assert await certificate_of(node, trusting()) == before
            assert (await altered(peer, store)).error_code == 0
            await until(lambda: location in node.broker.config.dynamic_broker)
            assert await certificate_of(node, trusting()) == renewed.certificate.public_bytes(Encoding.DER)
            assert (await altered(peer, dict.fromkeys(store))).error_code == 0
            await until(lambda: location not in node.broker.config.dynamic_broker)
            assert await certificate_of(node, trusting()) == before

    run(play, tmp_path, stores(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("between_brokers", [False, True])
def test_a_node_starts_with_the_stores_of_its_file_if_those_in_the_metadata_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, between_brokers: bool
) -> None:
    monkeypatch.setattr(contexts, "LOOKED_EVERY_MS", 0)
    settings = stores(tmp_path, inter_broker_listener_name="SSL" if between_brokers else "PLAINTEXT")
    added = sign("added", AUTHORITY)
    store = tmp_path / "added.pem"

    async def change(node: Node) -> None:
        async with dialled(node) as peer:
            location = "listener.name.ssl.ssl.keystore.location"
            assert (await altered(peer, {location: str(added.pem(store))})).error_code == 0
            await until(lambda: location in node.broker.config.dynamic_broker)
        assert await certificate_of(node, trusting()) == added.certificate.public_bytes(Encoding.DER)

    async def without(node: Node) -> None:
        assert await certificate_of(node, trusting()) == SERVER.certificate.public_bytes(Encoding.DER)
        added.pem(store)
        assert await certificate_of(node, trusting()) == added.certificate.public_bytes(Encoding.DER)

    run(change, tmp_path, settings)
    store.unlink()
    run(without, tmp_path, settings)
    told = said(caplog)
    assert "listener SSL: the stores that kafka-configs has set are not used, and those of the properties file" in told
    assert f"ssl.keystore.location={store}: No such file or directory" in told
    store.unlink()
    Path(settings["ssl.keystore.location"]).unlink()
    with pytest.raises(ConfigError, match=r"listener SSL: ssl.keystore.location=.*server.pem: No such file"):
        run(without, tmp_path, settings)


async def altered(
    peer: Peer, settings: Mapping[str, str | None]
) -> incremental_alter_configs.AlterConfigsResourceResponse:
    """The result of a change to the settings of broker 1. The value None deletes a setting."""
    changes = [
        incremental_alter_configs.AlterableConfig(name=name, config_operation=int(text is None), value=text)
        for name, text in settings.items()
    ]
    of_broker = incremental_alter_configs.AlterConfigsResource(resource_type=4, resource_name="1", configs=changes)
    told = await peer.ask("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[of_broker]))
    row: incremental_alter_configs.AlterConfigsResourceResponse = told.responses[0]
    return row


def test_clients_that_log_in_need_a_certificate_only_if_their_listener_says_so(tmp_path: Path) -> None:
    users = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="of ann";'
    settings = {
        **stores(tmp_path, ssl_client_auth="required"),
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,OTHER://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,OTHER:SASL_SSL",
        "listener.name.other.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": users,
        "listener.name.other.plain.sasl.jaas.config": users,
    }

    async def play(node: Node) -> None:
        network, (_, one, other) = node.broker.world.network, node.advertised
        login = Login("PLAIN", "ann", "of ann")
        anonymous, certified = (lambda: trusting()), (lambda: trusting(sign("bob", AUTHORITY), tmp_path))
        for port, context in ((one.port, anonymous), (one.port, certified), (other.port, certified)):
            peer = await Dialer(network, login, context).meet("127.0.0.1", port, client_id="test")
            assert [str(each.principal) for each in node.server.connections()] == ["User:ann"]
            peer.close()
            await until(lambda: not node.server.connections())
        with pytest.raises(OSError):
            await Dialer(network, login, anonymous).meet("127.0.0.1", other.port, client_id="test")

    run(play, tmp_path, settings)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)
