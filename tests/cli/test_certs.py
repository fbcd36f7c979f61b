"""Tests that a broker and a client accept the settings that `kpybroker certs dev` prints."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from kpybroker.config import parse_properties
from tests.cli.shell import Shell
from tests.serving import serving


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs commands without a broker."""
    return Shell("127.0.0.1:1", monkeypatch)


def test_a_broker_and_a_client_accept_the_printed_settings(tmp_path: Path, offline: Shell) -> None:
    at = tmp_path / "certs"
    code, out, err = offline("certs", "dev", str(at))
    assert (code, err) == (0, "")
    assert {path.stat().st_mode & 0o777 for path in at.iterdir()} == {0o600}
    settings = parse_properties(out.partition("\n\n")[0], "printed")
    settings["listeners"] = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"

    async def play() -> None:
        context = ssl.create_default_context(cafile=at / "ca.pem")
        context.load_cert_chain(at / "client.pem")
        async with serving(tmp_path / "data", {**settings, "ssl.client.auth": "required"}) as node:
            for name in ("localhost", "127.0.0.1", "::1"):
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", node.advertised[1].port, ssl=context, server_hostname=name
                )
                writer.close()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_existing_files_are_not_overwritten(tmp_path: Path, offline: Shell) -> None:
    (tmp_path / "ca.pem").write_text("mine")
    code, _, err = offline("certs", "dev", str(tmp_path))
    assert code == 1
    assert f"{tmp_path}/ca.pem already exists" in err
    assert (tmp_path / "ca.pem").read_text() == "mine"


def test_a_certificate_is_for_the_hosts_that_are_named(tmp_path: Path, offline: Shell) -> None:
    at = tmp_path / "certs"
    names = ("broker-1.example.org", "10.1.2.3", "*.brokers.example.org", "localhost")
    assert offline("certs", "dev", str(at), *(word for name in names for word in ("--host", name))).code == 0
    shown = x509.load_pem_x509_certificate((at / "server.pem").read_bytes())
    found = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(found.get_values_for_type(x509.DNSName)) == {"localhost", names[0], names[2]}
    assert {str(each) for each in found.get_values_for_type(x509.IPAddress)} == {"127.0.0.1", "::1", "10.1.2.3"}


@pytest.mark.parametrize("name", ["", "a:9092", "a b", "-a", "a..b", "*", "a.*.b", "x" * 64, ".".join(["x" * 50] * 6)])
def test_what_is_no_host_is_refused(tmp_path: Path, offline: Shell, name: str) -> None:
    code, _, err = offline("certs", "dev", str(tmp_path / "certs"), "--host", name)
    assert code == 2
    assert "write a DNS name or an IP address, without a port" in err
    assert not (tmp_path / "certs").exists()
