"""Tests that keys are refreshed from their source: a file, or a URL that a real HTTP server serves."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kpybroker.config.http_url import parse_url
from kpybroker.config.oauth_settings import KeysFile, KeysUrl
from kpybroker.errors import ConfigError
from kpybroker.security.sasl import http_get as http
from kpybroker.security.sasl import refreshing_keys
from kpybroker.security.sasl.http_get import http_get
from kpybroker.security.sasl.refreshing_keys import FileKeys, UrlKeys
from kpybroker.world.real import RealWorld
from oracle.identity_provider import IdentityProvider, KeyServer
from tests.security.logins import Clock

PROVIDER = IdentityProvider("ES256", "ES384")
BOTH, ONE = PROVIDER.key_set(), json.dumps({"keys": [PROVIDER.row("ES256")]})
TOO_LARGE = "x" * (http.BODY_MAX_BYTES + 1)


def play(scenario: Callable[[RealWorld], Awaitable[None]]) -> None:
    world = RealWorld(1)
    asyncio.run(asyncio.wait_for(scenario(world), 60))
    world.close()


# ---- by HTTP


def test_a_page_is_read_completely() -> None:
    with KeyServer() as server:
        body = "x" * http.BODY_MAX_BYTES
        first = parse_url(server.show("/first?a=b", "", 301, Location="second"))
        server.show("/second", "", 302, Location="/third")
        server.show("/third", "", 307, Location=f"{server.url}/last#x")
        server.show("/last", body)

        async def scenario(world: RealWorld) -> None:
            assert await http_get(world.network, first, None) == body.encode()

        play(scenario)
        assert server.asked == ["/first?a=b", "/second", "/third", "/last"]


@pytest.mark.parametrize(
    ("status", "headers", "body", "said"),
    [
        (404, {}, "", "returned status 404"),
        (204, {}, "", "returned status 204"),
        (302, {}, "", "returned status 302"),
        (308, {"Location": "/x"}, "", "returned status 308"),
        (302, {"Location": "https://x/y"}, "", "from http to https is not followed"),
        (302, {"Location": "file:///etc/passwd"}, "", "a redirect has an invalid address"),
        (302, {"Location": "http://u:p@x/y"}, "", "a redirect has an invalid address"),
        (302, {"Location": "/page"}, "", "more than 20 redirects"),
        (200, {}, TOO_LARGE, "larger than 1048576 bytes"),
        (200, {"Content-Length": "9"}, "x", "peer closed connection without sending complete"),
        (200, {"X": "x" * 1_000_000}, "x", "the response is not HTTP"),
    ],
)
def test_responses_that_are_not_a_page(status: int, headers: dict[str, str], body: str, said: str) -> None:
    with KeyServer() as server:
        url = parse_url(server.show("/page", body, status, **headers))

        async def scenario(world: RealWorld) -> None:
            with pytest.raises(OSError, match=said):
                await http_get(world.network, url, None)

        play(scenario)


IN_CRUMBS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (http.PIECES_MAX + 1)


@pytest.mark.parametrize(
    "answer", [b"", b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", IN_CRUMBS]
)
def test_a_server_of_another_protocol(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = parse_url(f"http://127.0.0.1:{listening.getsockname()[1]}/")

        async def scenario(world: RealWorld) -> None:
            with pytest.raises(OSError, match=r"not HTTP|closed before|more than 4096 pieces"):
                await http_get(world.network, url, None)

        play(scenario)
        thread.join()


def test_a_silent_server_is_given_up_and_blocks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = parse_url(f"http://127.0.0.1:{listening.getsockname()[1]}/")

        async def scenario(world: RealWorld) -> None:
            waiting = asyncio.ensure_future(http_get(world.network, url, None))
            turns = 0
            while not waiting.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns > 10, "the loop kept running"
            with pytest.raises(OSError, match="no response within"):
                await waiting

        play(scenario)


# ---- a URL


class Address:
    """A URL and its keys; the test chooses the responses."""

    def __init__(self, world: RealWorld, clock: Clock, **settings: int) -> None:
        url = parse_url("http://nowhere/")
        given = {"refresh_ms": 3_600_000, "backoff_ms": 1, "backoff_max_ms": 0, **settings}
        self.answers: list[bytes | OSError] = []
        self.asked = asyncio.Semaphore(0)
        self.keys = UrlKeys("X", KeysUrl(url, tls={}, **given), self._get, clock, world.disk.off_loop)

    async def _get(self) -> bytes:
        self.asked.release()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    @property
    def kids(self) -> list[str | None]:
        return [each.kid for each in self.keys.current.keys]


def test_a_url_is_requested_again_until_it_answers() -> None:
    async def scenario(world: RealWorld) -> None:
        clock = Clock()
        address = Address(world, clock, backoff_max_ms=1000)
        address.answers = [OSError("down"), b"{", b'{"keys": 3}', BOTH.encode()]
        await address.keys.load()
        assert address.kids == ["ES256", "ES384"]
        address.answers = [OSError("down")]
        stopped = asyncio.ensure_future(address.keys.load())
        for _ in range(6):
            await address.asked.acquire()
        clock.now_ms += 1000
        with pytest.raises(
            ConfigError, match=r"listener X: sasl\.oauthbearer\.jwks\.endpoint\.url=http://nowhere/: down"
        ):
            await stopped
        assert address.kids == ["ES256", "ES384"]

    play(scenario)


@pytest.mark.slow
def test_a_missing_key_is_requested_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refreshing_keys, "AGAIN_AFTER_S", 0)

    async def scenario(world: RealWorld) -> None:
        clock = Clock()
        address = Address(world, clock)
        address.answers = [ONE.encode()]
        await address.keys.load()
        await address.asked.acquire()
        following = asyncio.ensure_future(address.keys.follow())

        async def is_asked(kid: str) -> bool:
            address.keys.missing(kid)
            with_time = asyncio.wait_for(address.asked.acquire(), 0.2)
            try:
                await with_time
            except TimeoutError:
                return False
            return True

        assert await is_asked("a")
        assert not await is_asked("a")
        assert await is_asked("b")
        assert not await is_asked("x" * 1001)
        clock.now_ms += refreshing_keys.MISSING_FOR_MS
        assert await is_asked("a")
        address.answers = [OSError("down")]
        assert await is_asked("ES384")
        assert address.kids == ["ES256"], "they stay"
        address.answers = [BOTH.encode()]
        assert not await is_asked("ES384")
        assert await is_asked("c")
        while len(address.kids) < 2:
            await asyncio.sleep(0)
        address.answers = [ONE.encode()]
        assert await is_asked("ES384"), "it arrived in the meantime"
        for number in range(refreshing_keys.MISSING_MAX):
            address.keys.missing(f"more-{number}")
        assert await is_asked("a"), "the names that are kept are bounded"
        assert not following.done()
        following.cancel()

    play(scenario)


def test_keys_are_refreshed_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refreshing_keys, "AGAIN_AFTER_S", 0)

    async def scenario(world: RealWorld) -> None:
        address = Address(world, Clock(), refresh_ms=1)
        address.answers = [ONE.encode(), OSError("down"), BOTH.encode()]
        await address.keys.load()
        following = asyncio.ensure_future(address.keys.follow())
        for _ in range(4):
            await address.asked.acquire()
        assert address.kids == ["ES256", "ES384"]
        following.cancel()

    play(scenario)


# ---- a file


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(ONE)

    def change(content: str | None, second: int) -> None:
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
            os.utime(file, (second, second))

    async def scenario(world: RealWorld) -> None:
        reads = 0

        async def off_loop(work: Callable[[], None]) -> None:
            nonlocal reads
            reads += 1
            await world.disk.off_loop(work)

        keys = FileKeys("X", KeysFile(str(file)), off_loop)
        await keys.load()
        assert reads == 2, "it is read and parsed on a thread"
        for second, (content, count) in enumerate(
            ((BOTH, 2), ("{", 0), (None, 0), (ONE, 1), (TOO_LARGE, 0), (BOTH, 2))
        ):
            assert keys.preparation() is None
            change(content, second)
            renewed = keys.preparation()
            assert renewed is not None
            before = reads
            await asyncio.gather(*(renewed() for _ in range(20)))
            assert reads <= before + 2, "once for all logins that want it"
            assert len(keys.current.keys) == count
            assert keys.preparation() is None, "an invalid file is also read once"
        keys.missing("x")

    play(scenario)


def test_a_cancelled_login_does_not_affect_another(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(ONE)

    async def scenario(world: RealWorld) -> None:
        keys = FileKeys("X", KeysFile(str(file)), world.disk.off_loop)
        await keys.load()
        file.write_text(BOTH)
        renewed = keys.preparation()
        assert renewed is not None
        first, second = (asyncio.ensure_future(renewed()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert len(keys.current.keys) == 2

    play(scenario)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), ("", "it is not JSON"), ("[]", "list of keys"), (TOO_LARGE, "larger than")],
)
def test_a_file_without_keys_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)

    async def scenario(world: RealWorld) -> None:
        keys = FileKeys("X", KeysFile(str(file)), world.disk.off_loop)
        with pytest.raises(ConfigError, match=f"listener X: .*keys.json: .*{said}"):
            await keys.load()

    play(scenario)
