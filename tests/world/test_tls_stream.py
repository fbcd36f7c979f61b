"""Tests of TLS over real sockets: bytes arrive as they were sent, and a peer can make the
server use only a limited amount of CPU and memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kpybroker.world import handshakes
from kpybroker.world.real import RealNetwork
from kpybroker.world.secure import Material, TlsAcceptor, read_public, read_store, server_context
from tests.certificates import sign
from tests.key_updates import updates_until_it_ends

AUTHORITY = sign("authority")
SERVER = sign("server", AUTHORITY)
CONTEXT = server_context(
    Material((SERVER.key_pem() + SERVER.chain_pem).encode(), "", ("TLSv1.2", "TLSv1.3"), ""), "none"
)
LARGE = bytes(range(256)) * (1 << 15)
"""8 MiB: more than the buffers of the kernel hold."""


class Echo(asyncio.BufferedProtocol):
    """Sends the received bytes back, or a large reply to each byte."""

    def __init__(self, reply: bytes | None, room: int) -> None:
        self._reply = reply
        self._buffer = bytearray(room)
        self.transport: asyncio.Transport | None = None
        self.paused: list[bool] = []
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        assert self.transport is not None
        self.transport.write(self._reply or bytes(self._buffer[:nbytes]))

    def pause_writing(self) -> None:
        self.paused.append(True)

    def resume_writing(self) -> None:
        self.paused.append(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)


class Listening:
    """A listener, its protocols, and the reasons for which it closed connections."""

    def __init__(self, reply: bytes | None, room: int, closes_s: float | None) -> None:
        self.protocols: list[Echo] = []
        self.refused: list[str] = []
        self.broken: list[str] = []
        self.port = 0
        self.on_context: Callable[[], None] = lambda: None
        self._new = lambda: Echo(reply, room)
        self._closes_s = closes_s

    def protocol(self) -> Echo:
        self.protocols.append(self._new())
        return self.protocols[-1]

    def context(self) -> ssl.SSLContext:
        self.on_context()
        return CONTEXT

    @property
    def acceptor(self) -> TlsAcceptor:
        return TlsAcceptor(
            self.context,
            lambda _, why: self.refused.append(why),
            lambda _, why: self.broken.append(why),
            lambda _: self._closes_s,
        )


def run(
    play: Callable[[Listening], Awaitable[None]],
    *,
    reply: bytes | None = None,
    room: int = 4096,
    closes_s: float | None = None,
) -> None:
    async def whole() -> None:
        here = Listening(reply, room, closes_s)
        listener = await RealNetwork().listen(here.protocol, "127.0.0.1", 0, here.acceptor)
        here.port = listener.port
        try:
            await play(here)
        finally:
            listener.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def trusting(version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=AUTHORITY.chain_pem)
    context.maximum_version = version
    return context


async def dialled(here: Listening, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", here.port, ssl=context, server_hostname="localhost")


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("size", [1, 7, 5000, 1 << 20])
@pytest.mark.parametrize("room", [100, 4096, 1 << 17])
def test_what_is_sent_in_pieces_of_any_size_comes_back(version: ssl.TLSVersion, size: int, room: int) -> None:
    sent = LARGE[: min(3000 * size, 2 << 20)]

    async def play(here: Listening) -> None:
        reader, writer = await dialled(here, trusting(version))

        async def write() -> None:
            for at in range(0, len(sent), size):
                writer.write(sent[at : at + size])  # a separate record
                await writer.drain()

        _, found = await asyncio.gather(write(), reader.readexactly(len(sent)))
        assert found == sent
        writer.close()

    run(play, room=room)


def handshake_of(here: Listening, conn: socket.socket) -> tuple[ssl.SSLObject, ssl.MemoryBIO]:
    """Do a handshake, one byte at a time, over a blocking socket."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
    conn.connect(("127.0.0.1", here.port))
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    is_done = False
    while not is_done:
        try:
            client.do_handshake()
            is_done = True
        except ssl.SSLWantReadError:
            pass
        for one in outgoing.read():
            conn.sendall(bytes([one]))
        if not is_done:
            incoming.write(conn.recv(65536))
    return client, outgoing


def test_a_handshake_may_come_byte_by_byte() -> None:
    def dial(here: Listening) -> None:
        with socket.socket() as conn:
            conn.settimeout(30)
            client, outgoing = handshake_of(here, conn)
            client.write(b"x")
            for one in outgoing.read():
                conn.sendall(bytes([one]))
            assert conn.recv(10)

    async def play(here: Listening) -> None:
        await asyncio.to_thread(dial, here)

    run(play)


def test_a_reply_that_is_not_read_is_told_and_stops_the_writer() -> None:
    """A reply is encrypted only as fast as it is read. `UnsentReplies` relies on the reported size."""

    async def play(here: Listening) -> None:
        reader, writer = await dialled(here, trusting())
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"x")
        await until(lambda: bool(here.protocols and here.protocols[0].paused))
        server = here.protocols[0]
        assert server.transport is not None
        assert server.transport.get_write_buffer_size() > len(LARGE) // 4
        assert server.paused == [True]
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await reader.readexactly(len(LARGE)) == LARGE
        await until(lambda: server.paused == [True, False])
        assert server.transport.get_write_buffer_size() == 0
        writer.close()

    run(play, reply=LARGE)


def test_what_was_written_before_a_close_arrives() -> None:
    async def play(here: Listening) -> None:
        reader, writer = await dialled(here, trusting())
        writer.write(b"x")
        await until(lambda: bool(here.protocols and here.protocols[0].paused))
        assert here.protocols[0].transport is not None
        here.protocols[0].transport.close()
        assert await reader.read(-1) == LARGE
        writer.close()

    run(play, reply=LARGE)


def test_a_close_does_not_wait_for_the_peer() -> None:
    """asyncio would wait 30 s for the peer's close_notify, and the connection would count towards the limits during
    this time."""

    async def play(here: Listening) -> None:
        with socket.socket() as conn:
            conn.settimeout(30)
            await asyncio.to_thread(handshake_of, here, conn)
            await until(lambda: bool(here.protocols))
            (server,) = here.protocols
            assert server.transport is not None
            server.transport.close()
            await asyncio.wait_for(server.lost, 10)

    run(play)


def test_records_without_data_end_the_connection() -> None:
    """Each KeyUpdate costs more than a record with data: a flood of them delayed other clients for seconds."""

    async def play(here: Listening) -> None:
        with socket.socket() as conn:
            conn.connect(("127.0.0.1", here.port))
            done = await asyncio.to_thread(updates_until_it_ends, conn.fileno(), 1_000_000)
        assert done < 100_000, "the rest was in the buffers of the kernel"
        await asyncio.wait_for(here.protocols[0].lost, 10)
        assert here.broken == ["32 records or more without data in a row"]

    run(play)


def test_a_record_that_is_damaged_ends_the_connection_with_a_reason() -> None:
    def dial(here: Listening) -> None:
        with socket.socket() as conn:
            conn.settimeout(30)
            handshake_of(here, conn)
            conn.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            while conn.recv(4096):
                pass

    async def play(here: Listening) -> None:
        await asyncio.to_thread(dial, here)
        assert here.broken == ["decryption failed or bad record mac"]
        assert here.refused == []

    run(play)


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        trusting().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def test_handshakes_take_turns_with_everything_else_and_among_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ClientHello costs the server a millisecond: with an RSA key, 256 at once delayed other clients for 140 ms."""
    monkeypatch.setattr(handshakes, "TURN_S", 0.0)
    hello, many = client_hello(), 20
    crowd, other = "127.0.0.2", "127.0.0.3"
    begun: list[int] = []
    answered: list[str] = []

    async def play(here: Listening) -> None:
        loop, turn = asyncio.get_running_loop(), 0

        def count() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count)

        count()
        here.on_context = lambda: begun.append(turn)
        dialled = [(host, socket.socket()) for host in (*[crowd] * many, other)]
        for host, conn in dialled:
            conn.setblocking(False)
            conn.bind((host, 0))
            await loop.sock_connect(conn, ("127.0.0.1", here.port))
        for _, conn in dialled:
            conn.send(hello)

        async def answer(host: str, conn: socket.socket) -> None:
            assert await loop.sock_recv(conn, 1)
            answered.append(host)
            conn.close()

        await asyncio.gather(*(answer(*each) for each in dialled))

    run(play)
    assert len(set(begun)) == many + 1, "each in a turn of its own"
    assert answered.index(other) < many // 2, "it did not wait for the crowd"


@pytest.mark.parametrize("closes_s", [0, 0.05])
def test_a_connection_above_a_limit_gets_no_handshake(closes_s: float) -> None:
    async def play(here: Listening) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(client_hello())
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        assert here.refused == []
        assert here.protocols == []
        writer.close()

    run(play, closes_s=closes_s)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for read in (read_store, read_public):
        with pytest.raises(OSError, match="a pipe or a device"):
            read(str(pipe))
        with pytest.raises(IsADirectoryError):
            read(str(tmp_path))
