"""`kpybroker certs dev`: a broker and a client accept what it prints."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

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
    assert f"{tmp_path}/ca.pem is there already" in err
    assert (tmp_path / "ca.pem").read_text() == "mine"
