"""Tests of `--command-config`: commands over TLS with a login, and the errors if a setting does not match the
listener."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from oracle.target import steady_port
from tests.certificates import sign
from tests.cli.shell import Shell, kpybroker_process, ready

pytestmark = pytest.mark.slow

AUTHORITY = sign("authority")
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PLAIN, NAMED = steady_port(), steady_port()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a broker with a listener that has TLS and logins, and a listener that has neither."""
    at = tmp_path_factory.mktemp("broker")
    (at / "ca.pem").write_text(AUTHORITY.chain_pem)
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{PLAIN},NAMED://127.0.0.1:{NAMED}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,NAMED:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.named.plain.sasl.jaas.config": f'{MODULE} user_ann="of ann";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(sign("localhost", AUTHORITY).pem(at / "server.pem")),
        "log.dirs": str(at / "data"),
    }
    (at / "server.properties").write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    process = kpybroker_process("serve", "--config", str(at / "server.properties"))
    try:
        ready(process)
        yield at
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture
def named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs commands on the listener with TLS and logins."""
    return Shell(f"localhost:{NAMED}", monkeypatch)


def properties(directory: Path, **changes: str | None) -> dict[str, str]:
    """The properties of a client with valid credentials."""
    fitting = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{MODULE} username="ann" password="of ann";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "ca.pem"),
        "acks": "all",
    }
    changed = {**fitting, **{name.replace("_", "."): text for name, text in changes.items()}}
    return {name: text for name, text in changed.items() if text is not None}


def written(path: Path, settings: Mapping[str, str]) -> str:
    path.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    return str(path)


def test_the_settings_may_come_before_or_after_the_command_or_from_the_environment(
    directory: Path, named: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = written(tmp_path / "client.properties", properties(directory))
    assert named("--command-config", config, "topics", "create", "t").code == 0
    assert named("produce", "t", "--command-config", config, stdin=b"one\n").code == 0
    monkeypatch.setenv("KPYBROKER_COMMAND_CONFIG", config)
    assert named("consume", "t", "--from-beginning", "--max", "1").out == "one\n"
    monkeypatch.setenv(
        "KPYBROKER_COMMAND_CONFIG",
        written(tmp_path / "more.properties", properties(directory) | {"bootstrap.servers": f"localhost:{NAMED}"}),
    )
    named.bootstrap = ""
    assert [each["topic"] for each in named("topics", "list", "--json").json] == ["t"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sasl_jaas_config": f'{MODULE} username="ann" password="wrong";'}, "the login of 'ann' with PLAIN failed"),
        ({"ssl_truststore_location": None}, "this node does not accept its certificate"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "if its listener has TLS or logins, give --command-config"),
        ({"security_protocol": "SSL"}, "does the command log in if the listener has logins (--command-config)?"),
        ({"security_protocol": "TLS"}, "security.protocol=TLS: name one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"sasl_mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI is not served: it needs Kerberos"),
        ({"ssl_truststore_locaton": "x"}, "unknown setting ssl.truststore.locaton; did you mean"),
        ({"ssl_truststore_location": "/nowhere"}, "ssl.truststore.location=/nowhere: No such file"),
    ],
)
def test_settings_that_do_not_match_the_listener_are_explained(
    directory: Path, named: Shell, tmp_path: Path, changes: dict[str, str | None], said: str
) -> None:
    config = written(tmp_path / "client.properties", properties(directory, **changes))
    answer = named("--timeout", "5", "topics", "list", "--command-config", config)
    assert answer.code in (1, 2)
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1
    assert "wrong" not in answer.err


def test_tls_with_a_listener_that_has_none(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(f"localhost:{PLAIN}", monkeypatch)
    config = written(tmp_path / "client.properties", properties(directory))
    answer = shell("--timeout", "5", "topics", "list", "--command-config", config)
    assert answer.code == 1
    assert f"localhost:{PLAIN}, with TLS: it closed the connection, as a listener without TLS does;" in answer.err
