"""Secrets are never shown. Every setting that can contain a secret has one, and all outputs are searched for them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import os
import struct
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kpybroker.cli.environment import read_environment
from kpybroker.client.client import CommandFailed
from kpybroker.client.dialer import Dialer
from kpybroker.client.peer import Peer
from kpybroker.config import parse_config, parse_properties, parse_setting
from kpybroker.config.broker_keys import CHANGEABLE_KEYS
from kpybroker.config.client_properties import check_client_properties
from kpybroker.config.key import PASSWORD, Mode
from kpybroker.config.login import Login, login_of
from kpybroker.config.resource_type import ResourceType
from kpybroker.config.security_keys import SECURITY_KEYS
from kpybroker.errors import ConfigError, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.security.tls.contexts import check_stores
from kpybroker.security.tls.settings import tls_settings
from kpybroker.testing import Broker
from kpybroker.wire.api import by_name
from kpybroker.wire.codec.codec import build
from kpybroker.wire.rpc import (
    alter_user_scram_credentials,
    create_delegation_token,
    describe_configs,
    describe_delegation_token,
    describe_user_scram_credentials,
    expire_delegation_token,
    incremental_alter_configs,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
)
from kpybroker.world.real import real_world
from tests.certificates import sign
from tests.cli.shell import Shell, kpybroker_process, ready
from tests.secrets_planted import Planted

pytestmark = pytest.mark.slow

NAMES = sorted({key.name for key in (*CHANGEABLE_KEYS.values(), *SECURITY_KEYS) if key.kind is PASSWORD})
"""All settings that are secret according to the tables of settings."""
PER_BROKER = [name for name in NAMES if CHANGEABLE_KEYS[name].mode is Mode.PER_BROKER and name.startswith("ssl.")]
ITERATIONS = 4096
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
OF_BROKER = ResourceType.BROKER


def settings(planted: Planted, directory: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The settings of a node, with a secret in every setting that can contain one, and the passwords of its users."""
    users = {name: planted.secret(f"PLAIN {name}") for name in ("admin", "ann")}
    token = directory / "token"
    token.touch(0o600)
    token.write_text(planted.secret("http token"))
    jaas = "".join(f' user_{name}="{password}"' for name, password in users.items())
    found = {name: planted.secret(name) for name in NAMES}
    found |= {f"listener.name.unused.{name}": planted.secret(f"{name} of a listener") for name in PER_BROKER}
    found |= {
        "listeners": "NAMED://127.0.0.1:0",
        "listener.security.protocol.map": "NAMED:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "NAMED",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.named.plain.sasl.jaas.config": f'{PLAIN} username="admin" password="{users["admin"]}"{jaas};',
        "listener.name.named.oauthbearer.sasl.jaas.config": f'{OAUTH} unsecuredLoginStringClaim_sub="x";',
        "connection.failed.authentication.delay.ms": "0",
        "kpybroker.http.port": "0",
        "kpybroker.http.token.file": str(token),
        "com.example.plugin.secret": planted.secret("a setting of other software"),
        "log.dirs": str(directory / "data"),
    }
    return found, users


def write(path: Path, found: Mapping[str, str]) -> Path:
    path.touch(0o600)
    path.write_text("".join(f"{name}={text}\n" for name, text in found.items()))
    return path


class Play:
    """Sends all requests that can contain secrets, with valid and invalid contents, and collects all responses."""

    def __init__(self, planted: Planted, bootstrap: str, users: Mapping[str, str]) -> None:
        self.planted, self.users = planted, users
        self.told: list[str] = []
        self.addresses: list[str] = []
        host, _, port = bootstrap.rpartition(":")
        self._address = host, int(port)
        self.scram = planted.secret("SCRAM password")
        self.salted = hashlib.pbkdf2_hmac("sha256", self.scram.encode(), b"a salt", ITERATIONS)
        client_key = hashlib.new("sha256", self.salted).digest()
        for of, derived in (("salted password", self.salted), ("a key of it", client_key)):
            planted.know(of, derived)

    async def dial(self, login: Login) -> Peer:
        return await Dialer(real_world().network, login).meet(*self._address, client_id="c")

    async def all(self) -> None:
        admin = await self.dial(Login("PLAIN", "admin", self.users["admin"]))
        await self._configs(admin)
        await self._scram(admin)
        await self._tokens(admin)
        await self._logins()
        await self._damaged(admin)
        admin.close()

    async def _ask(self, peer: Peer, api: str, request: Any) -> Any:
        response = await peer.ask(api, request)
        self.told.append(f"{api}: {response!r}")
        return response

    async def _configs(self, admin: Peer) -> None:
        """Change each secret of the running node to valid and invalid values, and then describe all settings."""
        names = [f"listener.name.other.{name}" for name in PER_BROKER] + ["sasl.jaas.pasword", *NAMES]
        for name in names:
            for broker in ("1", ""):
                change = incremental_alter_configs.AlterableConfig(
                    name=name, config_operation=0, value=self.planted.secret(f"{name} while running")
                )
                resource = incremental_alter_configs.AlterConfigsResource(
                    resource_type=OF_BROKER, resource_name=broker, configs=[change]
                )
                await self._ask(
                    admin, "IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[resource])
                )
        for broker in ("1", ""):
            resource = describe_configs.DescribeConfigsResource(resource_type=OF_BROKER, resource_name=broker)
            request = describe_configs.Request(resources=[resource], include_synonyms=True, include_documentation=True)
            described = await self._ask(admin, "DescribeConfigs", request)
            rows = {row.name: row for result in described.results for row in result.configs}
            assert broker == "" or {*NAMES} <= rows.keys()
            assert all(row.value is None for name, row in rows.items() if name.endswith(tuple(NAMES)))

    async def _scram(self, admin: Peer) -> None:
        for iterations in (ITERATIONS, 1):
            row = alter_user_scram_credentials.ScramCredentialUpsertion(
                name="sam", mechanism=1, iterations=iterations, salt=b"a salt", salted_password=self.salted
            )
            self.told.append(repr(row) if iterations == 0 else "")
            await self._ask(admin, "AlterUserScramCredentials", alter_user_scram_credentials.Request(upsertions=[row]))
        await self._ask(admin, "DescribeUserScramCredentials", describe_user_scram_credentials.Request(users=None))

    async def _tokens(self, admin: Peer) -> None:
        made = await admin.ask("CreateDelegationToken", create_delegation_token.Request(max_lifetime_ms=-1))
        assert made.error_code == 0, made
        self.planted.know("delegation token", bytes(made.hmac))
        await admin.ask("DescribeDelegationToken", describe_delegation_token.Request(owners=None))
        wrong = self.planted.secret("a wrong token").encode()
        for hmac in (bytes(made.hmac), wrong):
            await self._ask(
                admin, "RenewDelegationToken", renew_delegation_token.Request(hmac=hmac, renew_period_ms=-1)
            )
        secret = base64.b64encode(made.hmac).decode()
        (await self.dial(Login("SCRAM-SHA-256", made.token_id, secret, by_token=True))).close()
        await self._refused(Login("SCRAM-SHA-256", made.token_id, secret[::-1], by_token=True))
        await self._ask(
            admin, "ExpireDelegationToken", expire_delegation_token.Request(hmac=wrong, expiry_time_period_ms=-1)
        )

    async def _refused(self, login: Login) -> None:
        try:
            (await self.dial(login)).close()
        except (KafkaError, OSError, ConfigError, CommandFailed) as error:
            self.told.append("".join(traceback.format_exception(error)))
            self.told.append(repr(login))
        else:
            raise AssertionError(f"{login} was let in")

    async def _logins(self) -> None:
        (await self.dial(Login("SCRAM-SHA-256", "sam", self.scram))).close()
        for mechanism, user in (("PLAIN", "ann"), ("PLAIN", "nobody"), ("SCRAM-SHA-256", "sam")):
            await self._refused(Login(mechanism, user, self.planted.secret(f"wrong password of {user}")))
        for claims in ({"sub": "bob", "exp": 4_000_000_000}, {"sub": "bob", "exp": 1}, {"exp": "none"}):
            token = _unsecured({**claims, "jti": self.planted.secret("a claim")})
            self.planted.know("token", token.encode())
            await self._bare("OAUTHBEARER", f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        for text in ("n,,\x01auth=Basic {}\x01\x01", "{}", "n,,\x01auth=Bearer {}\x01"):
            await self._bare("OAUTHBEARER", text.format(self.planted.secret("a broken token")).encode())
        for text in ("{}", "\0{}", "\0u\0{}\0more", "u\0other\0{}", "\0\0{}", "\0ann\0\0{}"):
            await self._bare("PLAIN", text.format(self.planted.secret("a broken login")).encode())
        for text in ("n,,n={}", "n,,m={},n=sam,r=abc", "y,,n=sam,r={}", "{}"):
            await self._bare("SCRAM-SHA-256", text.format(self.planted.secret("a broken first message")).encode())

    async def _send(self, mechanism: str, *frames: bytes) -> None:
        """Send a handshake and these frames, each time from another address, because the log limits the lines about
        each address."""
        self.addresses.append(f"127.0.0.{len(self.addresses) + 10}")
        reader, writer = await asyncio.open_connection(*self._address, local_addr=(self.addresses[-1], 0))
        with contextlib.suppress(OSError):  # it may be closed before everything is sent
            writer.write(b"".join((_frame("SaslHandshake", sasl_handshake.Request(mechanism=mechanism)), *frames)))
            writer.write_eof()
            self.told.append(repr(await reader.read()))
        writer.close()

    async def _bare(self, mechanism: str, token: bytes) -> None:
        """Send the token unchanged, and then the bytes that a client sends after a refusal."""
        parts = (sasl_authenticate.Request(auth_bytes=part) for part in (token, b"\x01"))
        await self._send(mechanism, *(_frame("SaslAuthenticate", part) for part in parts))

    async def _damaged(self, admin: Peer) -> None:
        """Send invalid requests with secrets, which are truncated or have surplus bytes."""
        secret = self.planted.secret("a damaged request")
        row = incremental_alter_configs.AlterableConfig(name="ssl.key.password", config_operation=9, value=secret)
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=OF_BROKER, resource_name="1", configs=[row]
        )
        whole = _frame("IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[resource]))
        await self._ask(admin, "IncrementalAlterConfigs", incremental_alter_configs.Request(resources=[resource]))
        for body in (whole[4:-3], whole[4:] + secret.encode(), whole[4:14] + secret.encode()):
            plain = sasl_authenticate.Request(auth_bytes=f"\0ann\0{self.users['ann']}".encode())
            damaged = struct.pack(">i", len(body)) + body
            await self._send("PLAIN", _frame("SaslAuthenticate", plain), damaged)


def _unsecured(claims: Mapping[str, Any]) -> str:
    parts = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "none"}, claims)
    )
    return ".".join(parts) + "."


def _frame(name: str, request: Any) -> bytes:
    api = by_name[name]
    version = 1 if name.startswith("Sasl") else api.max
    head = struct.pack(">hhih", api.key, version, 7, -1) + (b"\0" if version >= api.flexible else b"")
    body = head + build(request, version)
    return struct.pack(">i", len(body)) + body


def test_a_node_shows_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At log level DEBUG, there is no secret in its log, responses and metrics, or in the output of commands, including
    `storage` commands on its directory."""
    planted = Planted()
    given, users = settings(planted, tmp_path)
    credential = f"SCRAM-SHA-256=[name=max,password={planted.secret('--add-scram')}]"
    config = write(tmp_path / "server.properties", given)
    formatted = kpybroker_process(
        *("storage", "format", "--config", str(config), "--standalone"),
        *("--cluster-id", "a3B5YnJva2VyLW9yYWNsZQ", "--add-scram", credential),
    )
    shown = {"storage format": "".join(formatted.communicate())}
    facts_file = tmp_path / "ready"
    process = kpybroker_process(
        *("serve", "--config", str(config), "--ready-file", str(facts_file)),
        env={**os.environ, "KPYBROKER_LOG": "DEBUG"},
    )
    try:
        bootstrap = ready(process)["bootstrap"]
        play = Play(planted, bootstrap, users)
        asyncio.run(asyncio.wait_for(play.all(), 60))
        shown["responses"] = "\n".join(play.told)
        shown["metrics"] = asyncio.run(_metrics(json.loads(facts_file.read_text())["http"], given))
        client = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN} username="admin" password="{users["admin"]}";',
        }
        monkeypatch.setenv("KPYBROKER_COMMAND_CONFIG", str(write(tmp_path / "client.properties", client)))
        shell = Shell(bootstrap, monkeypatch)
        for command in (("status",), ("configs", "get", "--broker", "1", "--all"), ("configs", "get", "--all-brokers")):
            for more in ((), ("--json",)):
                answer = shell(*command, *more)
                assert answer.code == 0, answer
                shown[" ".join(command + more)] = answer.out + answer.err
    finally:
        process.terminate()
        out, err = process.communicate()
    shown["the log"] = out + err
    silent = [address for address in play.addresses if address not in err]
    assert len(silent) <= 2, "a login that is right, and a request with bytes behind its end"
    for command in (("info", "--config", str(config)), ("check", given["log.dirs"])):
        shown[" ".join(command)] = "".join(kpybroker_process("storage", *command).communicate())
    assert all(shown.values()), shown.keys()
    for where, text in shown.items():
        planted.check(where, text)


async def _metrics(address: str, given: Mapping[str, str]) -> str:
    host, _, port = address.rpartition(":")
    found = ""
    token = Path(given["kpybroker.http.token.file"]).read_text()
    for line in ("X: y", f"Authorization: Bearer {token}"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /metrics HTTP/1.1\r\nHost: x\r\n{line}\r\n\r\n".encode())
        found += (await reader.read()).decode()
        writer.close()
    assert "401" in found
    assert "kafka_" in found
    return found


# ---- input that is refused before a node starts

TLS = {"listeners": "SSL://127.0.0.1:0", "inter.broker.listener.name": "SSL", "log.dirs": "/x"}
LOGIN = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "inter.broker.listener.name": "SASL_PLAINTEXT", "log.dirs": "/x"}
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
HIDDEN_TEXTS = (
    "{}",
    f"{PLAIN} {{}};",
    f'{PLAIN} username="admin" password="{{}}"',
    f'{PLAIN} username="admin" password="{{}};',
    f'{PLAIN} username="admin" password="{{}}" ; {PLAIN};',
    'required username="admin" password="{}";',
    'com.example.Own required password="{}";',
    f'{PLAIN} password="{{}}";',
    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
    "-----BEGIN ENCRYPTED PRIVATE KEY-----\n{}\n-----END ENCRYPTED PRIVATE KEY-----",
    "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----",
)
"""Invalid values of secret settings."""
LINES = (
    "ssl.key.pasword={}",
    "ssl.key.password {0}\n{0}",
    "ssl.key.password\\={}",
    "ssl.key.password=\\u{}",
    "ssl.key.password=x\\u12{}",
    'sasl.jaas.config=org.x required\n  password="{}";',
    '"{}";',
    "ssl.keystore.key=-----BEGIN PRIVATE KEY-----\n{0}{0}{0}\n-----END PRIVATE KEY-----",
    "{}",
)
"""Lines of a property file that are not settings, or not the intended settings."""


def raised(work: Callable[[], object]) -> str:
    """The text of the error that `work` raises, with its traceback. If it raises none, the `repr` of its result, unless
    that is a mapping of settings."""
    try:
        made = work()
        return "" if isinstance(made, dict | tuple) else repr(made)
    except (ConfigError, CommandFailed, ValueError) as error:
        return f"{error} {error!r} {''.join(traceback.format_exception(error))}"


def _start(found: Mapping[str, str]) -> object:
    config = parse_config(found, "server.properties")
    check_stores(config, lambda: 0)
    return config


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_start_shows_no_secret(name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG)
    planted = Planted()
    pem = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM"}
    server = sign("server")
    stored = {
        "ssl.keystore.location": str(server.pkcs12(tmp_path / "a.p12", planted.secret("the right password"))),
        "ssl.truststore.location": str(server.pkcs12(tmp_path / "b.p12", planted.secret("the right password"))),
    }
    locked = planted.secret("of the key")
    pem_file = {**pem, "ssl.keystore.location": str(server.pem(tmp_path / "a.pem", locked))}
    for text in HIDDEN_TEXTS:
        for base in (TLS, {**TLS, **pem}, {**TLS, **stored}, {**TLS, **pem_file}, LOGIN):
            for prefix in (
                "",
                "listener.name.ssl.",
                "listener.name.sasl_plaintext.",
                "listener.name.sasl_plaintext.plain.",
            ):
                value = text.replace("{}", planted.secret(name))
                found = {**base, "sasl.enabled.mechanisms": "PLAIN", f"{prefix}{name}": value}
                said = raised(lambda found=found: _start(found))
                planted.check(f"{prefix}{name}", said)
        client = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            name: text.replace("{}", planted.secret(name)),
        }
        planted.check(f"a client's {name}", raised(partial(check_client_properties, client)))
        planted.check(f"a client's {name}", raised(partial(login_of, client)))
    planted.check("the log", caplog.text)


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_cannot_be_read_shows_no_secret(line: str, tmp_path: Path) -> None:
    planted = Planted()
    text = line.format(planted.secret("a line"))

    def from_file() -> object:
        return parse_config({**TLS, **parse_properties(text, "server.properties")}, "server.properties")

    assert "server.properties" in raised(from_file)
    planted.check("a property file", raised(from_file))
    client = write(tmp_path / "client.properties", {})
    client.write_text(text)
    planted.check(
        "the environment", raised(lambda: read_environment({"KAFKA_SSL_KEY_PASSWORD": text.partition("=")[2]}))
    )
    setting = text.partition("=")[2] or text
    planted.check("--set", raised(lambda: parse_setting(setting)))
    planted.check("a test broker", raised(lambda: Broker({f"{setting}=": 1})))


@pytest.mark.parametrize(
    "arguments",
    [
        ("dev", "--set", "ssl.key.password {}"),
        ("dev", "--set", "{}"),
        ("serve", "--set", "ssl.key.pasword={}"),
        ("configs", "set", "--broker", "1", "ssl.key.password", "{}"),
        ("configs", "set", "--broker", "1", "ssl.key.password {}"),
        ("storage", "format", "--config", "CONFIG", "--cluster-id", "x", "--add-scram", "SCRAM-SHA-256=[name=a,{}]"),
        ("storage", "format", "--config", "CONFIG", "--cluster-id", "x", "--add-scram", "{}"),
        ("topics", "create", "t", "--set", "{}"),
    ],
)
def test_a_command_that_is_refused_shows_no_secret(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    planted = Planted()
    config = write(tmp_path / "server.properties", {**TLS, "log.dirs": str(tmp_path / "data")})
    secret = planted.secret("an argument")
    process = kpybroker_process(*(each.replace("CONFIG", str(config)).format(secret) for each in arguments))
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert err
    planted.check(" ".join(arguments), out + err)


def test_what_holds_secrets_does_not_print_them(tmp_path: Path) -> None:
    """`repr` is used by assertions and debuggers."""
    planted = Planted()
    given, users = settings(planted, tmp_path)
    config = parse_config(given)
    login = Login("PLAIN", "ann", users["ann"])
    for thing in (config, tls_settings(config, "UNUSED"), config.sasl_listeners, login, Image()):
        planted.check(type(thing).__name__, f"{thing!r} {thing}")
