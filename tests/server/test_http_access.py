"""Access to the HTTP port with TLS and a token: which clients may read pages, the responses to the others, and the
limits on stalled handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from kpybroker.config import parse_config
from kpybroker.errors import ConfigError
from kpybroker.server.connections import refusal_log
from kpybroker.server.metrics import access, http
from kpybroker.server.node import Node
from tests.certificates import sign
from tests.serving import serving

AUTHORITY = sign("authority")
SERVER = sign("server", AUTHORITY)
TOKEN = "t0ken-of-prometheus-0123456789"
PATHS = ("/metrics", "/healthz", "/readyz")


def token_file(directory: Path, text: str = TOKEN) -> Path:
    path = directory / "token"
    path.touch(0o600)
    path.write_text(text)
    return path


def settings(directory: Path, *, tls: bool = False, token: bool = False, **more: str) -> dict[str, str]:
    found = {
        "kpybroker.http.port": "0",
        **{f"kpybroker.http.{name.replace('_', '.')}": it for name, it in more.items()},
    }
    if token:
        found["kpybroker.http.token.file"] = str(token_file(directory))
    if tls:
        found |= {
            "kpybroker.http.tls.listener": "PAGES",
            "listener.name.pages.ssl.keystore.type": "PEM",
            "listener.name.pages.ssl.keystore.location": str(SERVER.pem(directory / "server.pem")),
        }
    return found


def run(directory: Path, given: Mapping[str, str], play: Callable[[Node], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with serving(directory / "data", given) as node:
            await play(node)

    asyncio.run(asyncio.wait_for(whole(), 60))


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=AUTHORITY.chain_pem)


async def get(
    node: Node, path: str, *headers: str, context: ssl.SSLContext | None = None, method: str = "GET"
) -> tuple[int, bytes]:
    """The status and the whole response; 0 and the received bytes if they are not an HTTP response."""
    assert node.http is not None
    host, _, port = node.http.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    try:
        answer = await reader.read()
    except ConnectionError:
        answer = b""
    writer.close()
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0, answer


def bearer(token: str = TOKEN) -> str:
    return f"Authorization: Bearer {token}"


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


WRONG = {
    "none": (),
    "another": (bearer("another-of-the-same-length-0123"),),
    "the beginning": (bearer(TOKEN[:-1]),),
    "more": (bearer(TOKEN + "0"),),
    "empty": ("Authorization: Bearer ",),
    "another scheme": (f"Authorization: Basic {TOKEN}",),
    "without a scheme": (f"Authorization: {TOKEN}",),
    "another header": (f"X-Token: {TOKEN}",),
    "bytes": ("Authorization: Bearer \xe9\xff",),
    "the last of two counts": (bearer(), bearer("x" * 30)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_metrics_need_the_token_and_probes_do_not(tmp_path: Path, wrong: str) -> None:
    async def play(node: Node) -> None:
        for method in ("GET", "HEAD"):
            status, answer = await get(node, "/metrics", *WRONG[wrong], method=method)
            assert status == 401
            assert b'\r\nWWW-Authenticate: Bearer realm="kpybroker"' in answer
            assert (b'error="invalid_token"' in answer) == any("Authorization" in each for each in WRONG[wrong])
            assert b"kafka_" not in answer
            assert TOKEN.encode() not in answer
        assert [(await get(node, path, *WRONG[wrong]))[0] for path in PATHS[1:]] == [200, 200]
        assert [(await get(node, path, bearer()))[0] for path in PATHS] == [200] * 3
        assert (await get(node, "/metrics", f"authorization: bEARER   {TOKEN}"))[0] == 200

    run(tmp_path, settings(tmp_path, token=True), play)


@pytest.mark.parametrize("named", ["/readyz", "/metrics,/readyz,/healthz", "/healthz, /metrics"])
def test_the_paths_with_a_token_are_a_setting(tmp_path: Path, named: str) -> None:
    async def play(node: Node) -> None:
        assert [(await get(node, path))[0] for path in PATHS] == [401 if path in named else 200 for path in PATHS]

    run(tmp_path, settings(tmp_path, token=True, token_paths=named), play)


def test_a_token_that_changes_is_followed_and_a_wrong_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "LOOKED_EVERY_MS", 0)
    caplog.set_level(logging.INFO, "kpybroker.server.metrics.access")

    async def play(node: Node) -> None:
        new = "0123456789abcdef"
        token_file(tmp_path, new + "\n")
        assert [(await get(node, "/metrics", bearer(each)))[0] for each in (TOKEN, new)] == [401, 200]
        for text in ("", "short", "two words of sixteen", "x" * 5000, "\N{LATIN SMALL LETTER E WITH ACUTE}" * 20):
            token_file(tmp_path, text)
            assert (await get(node, "/metrics", bearer(new)))[0] == 200
        (tmp_path / "token").unlink()
        assert (await get(node, "/metrics", bearer(new)))[0] == 200
        assert "the former token stays in use: kpybroker.http.token.file=" in said(caplog)
        assert new not in said(caplog)

    run(tmp_path, settings(tmp_path, token=True), play)


@pytest.mark.parametrize("tls", [False, True])
def test_every_page_is_the_same_over_tls(tmp_path: Path, tls: bool) -> None:
    async def play(node: Node) -> None:
        context = trusting() if tls else None
        assert (await get(node, "/healthz", context=context))[1].endswith(b"ok\n")
        assert (await get(node, "/metrics", bearer(), context=context))[1].count(b"kafka_") > 10
        assert (await get(node, "/metrics", context=context))[0] == 401

    run(tmp_path, settings(tmp_path, token=True, tls=tls), play)


def test_the_stores_of_a_listener_may_serve_the_pages_too(tmp_path: Path) -> None:
    given = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(SERVER.pem(tmp_path / "server.pem")),
        "inter.broker.listener.name": "SSL",
        "kpybroker.http.port": "0",
        "kpybroker.http.tls.listener": "SSL",
    }

    async def play(node: Node) -> None:
        assert (await get(node, "/readyz", context=trusting()))[0] == 200

    run(tmp_path, given, play)


def test_stores_that_change_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kpybroker.security.tls.contexts.LOOKED_EVERY_MS", 0)

    async def play(node: Node) -> None:
        other = sign("other authority")
        sign("server", other).pem(tmp_path / "server.pem")
        with pytest.raises(ssl.SSLCertVerificationError):
            await get(node, "/healthz", context=trusting())
        assert (await get(node, "/healthz", context=ssl.create_default_context(cadata=other.chain_pem)))[0] == 200

    run(tmp_path, settings(tmp_path, tls=True), play)


def test_a_certificate_may_be_asked_of_clients(tmp_path: Path) -> None:
    trusted = tmp_path / "ca.pem"
    trusted.write_text(AUTHORITY.chain_pem)
    given = {
        **settings(tmp_path, tls=True),
        "listener.name.pages.ssl.client.auth": "required",
        "listener.name.pages.ssl.truststore.type": "PEM",
        "listener.name.pages.ssl.truststore.location": str(trusted),
    }

    async def play(node: Node) -> None:
        with contextlib.suppress(ssl.SSLError):
            assert (await get(node, "/healthz", context=trusting()))[0] == 0
        context = trusting()
        context.load_cert_chain(sign("prometheus", AUTHORITY).pem(tmp_path / "client.pem"))
        assert (await get(node, "/healthz", context=context))[0] == 200

    run(tmp_path, given, play)


def test_the_log_says_once_and_for_all_who_was_refused_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(node: Node) -> None:
        for _ in range(refusal_log.LINES_PER_HOST + 3):
            await get(node, "/metrics")

    run(tmp_path, settings(tmp_path, token=True), play)
    assert (
        said(caplog).count("kpybroker.http.port: the request for /metrics from 127.0.0.1 had no token")
        == refusal_log.LINES_PER_HOST
    )
    assert "3 more connections or frames were refused" in said(caplog)


def test_the_log_says_who_speaks_the_wrong_protocol(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def with_tls(node: Node) -> None:
        await get(node, "/healthz")
        assert (await get(node, "/healthz", context=trusting()))[0] == 200

    async def without(node: Node) -> None:
        with pytest.raises(ssl.SSLError):
            await get(node, "/healthz", context=trusting())

    run(tmp_path, settings(tmp_path, tls=True), with_tls)
    assert "it did not use TLS, but this listener does; use https:// for kpybroker.http.port" in said(caplog)
    run(tmp_path, settings(tmp_path), without)
    assert "127.0.0.1 used TLS, and this port does not; use http://" in said(caplog)


def test_stalled_handshakes_are_bounded_and_cost_nobody_a_page(tmp_path: Path) -> None:
    async def play(node: Node) -> None:
        assert node.http is not None
        port = int(node.http.rpartition(":")[2])
        stalled = [await asyncio.open_connection("127.0.0.1", port) for _ in range(http.CONNECTIONS_MAX + 5)]
        assert (await get(node, "/healthz", context=trusting()))[0] == 200
        for reader, _ in stalled[:5]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        for _, writer in stalled:
            writer.close()

    run(tmp_path, settings(tmp_path, tls=True), play)


REFUSED = {
    "no such file": ({"token.file": "/nowhere/token"}, "No such file"),
    "an empty token": ({"token.file": ""}, "openssl rand"),
    "a short token": ({"token.file": "x" * 15}, "16 to 4096"),
    "a long token": ({"token.file": "x" * 4097}, "16 to 4096"),
    "paths without a token": ({"token.paths": "/metrics"}, "set kpybroker.http.token.file"),
    "an unknown path": ({"token.paths": "/secrets"}, "kpybroker.http.token.paths"),
    "no key": ({"tls.listener": "PAGES"}, "kpybroker.http.tls.listener=PAGES: a listener with TLS needs a key"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_start_that_would_protect_less_than_was_asked_is_refused(tmp_path: Path, case: str) -> None:
    given, why = REFUSED[case]
    texts = dict(given)
    if "token.file" in texts and not texts["token.file"].startswith("/"):
        texts["token.file"] = str(token_file(tmp_path, texts["token.file"]))
    with pytest.raises(ConfigError, match=why):
        run(
            tmp_path, {"kpybroker.http.port": "0", **{f"kpybroker.http.{name}": it for name, it in texts.items()}}, idle
        )


async def idle(node: Node) -> None:
    """Do nothing while the node runs."""


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o640])
def test_a_token_that_others_may_read_is_refused_with_the_command_that_mends_it(tmp_path: Path, mode: int) -> None:
    given = settings(tmp_path, token=True)
    path = tmp_path / "token"
    path.chmod(mode)
    if mode & 0o007:
        with pytest.raises(ConfigError, match=f"run: chmod o-rwx {path}"):
            run(tmp_path, given, idle)
        path.chmod(mode & ~0o007)
    run(tmp_path, given, idle)


@pytest.mark.parametrize("tls", [False, True])
def test_the_health_check_of_a_container_brings_the_token(tmp_path: Path, tls: bool) -> None:
    given = settings(tmp_path, token=True, tls=tls, token_paths="/metrics,/healthz,/readyz")

    def check(node: Node, path: str) -> tuple[int, str]:
        assert node.http is not None
        names = {name: text for name, text in given.items() if name.startswith("kpybroker.http.")}
        names["kpybroker.http.port"] = node.http.rpartition(":")[2]
        variables = {f"KAFKA_{name.upper().replace('.', '_')}": text for name, text in names.items()}
        command = [sys.executable, "-m", "kpybroker.cli.health", path]
        ended = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout

    async def play(node: Node) -> None:
        loop = asyncio.get_running_loop()
        for path, told in (("/healthz", "ok\n"), ("/readyz", "ready\n")):
            assert await loop.run_in_executor(None, check, node, path) == (0, told)

    run(tmp_path, given, play)


def test_tls_has_a_share_of_the_file_handles() -> None:
    from kpybroker.cli.descriptors import HTTP_CONNECTIONS, reserved_descriptors

    plain = {"log.dirs": "/x", "kpybroker.http.port": "0"}
    secure = {**plain, "kpybroker.http.tls.listener": "PAGES"}
    kept = [reserved_descriptors(parse_config(each)) for each in (plain, secure)]
    assert kept[1] - kept[0] == HTTP_CONNECTIONS == http.CONNECTIONS_MAX
