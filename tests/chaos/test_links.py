"""Tests that the proxies inject the requested faults into the requested link, and into no other link."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from chaos.connection_owner import CLIENTS
from chaos.links import Flow, Links
from oracle.cluster import Listening

ECHO = """
import contextlib, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
while True:
    connection, _ = server.accept()
    with contextlib.suppress(OSError):
        while data := connection.recv(100):
            connection.sendall(data)
"""
DIAL = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5)
connection.sendall(b"x")
try:
    print(connection.recv(1), flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
sys.stdin.read()
"""
NODE, OTHER = 1, 2
FORTH, BACK = Flow(CLIENTS, NODE, "PLAINTEXT"), Flow(NODE, CLIENTS, "PLAINTEXT")


class Stage:
    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.listening = Listening(NODE, "PLAINTEXT", server.getsockname()[1])
        self.links = Links()
        self.port = self.links.told(self.listening)
        self.process = subprocess.Popen([sys.executable, "-c", ECHO, str(self.listening.port)], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def dial_when_open(self) -> socket.socket:
        while True:
            try:
                return self.dial()
            except ConnectionRefusedError:
                pass

    def close(self) -> None:
        self.links.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def says(connection: socket.socket) -> bytes:
    connection.sendall(b"hello")
    return connection.recv(100)


def test_a_node_that_is_down_refuses(stage: Stage) -> None:
    with pytest.raises(ConnectionRefusedError):
        stage.dial()
    stage.links.up(NODE, stage.process.pid)
    with stage.dial_when_open() as connection:
        assert says(connection) == b"hello"
        stage.links.down(NODE)
        assert connection.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        stage.dial()


def test_a_cut_link_is_reset_and_heals(stage: Stage) -> None:
    stage.links.up(NODE, stage.process.pid)
    with stage.dial_when_open() as connection:
        assert says(connection) == b"hello"
        stage.links.cut([Flow(OTHER, NODE, "PLAINTEXT")])
        assert says(connection) == b"hello"
        stage.links.cut([FORTH])
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionResetError), stage.dial() as connection:
        connection.recv(1)
    stage.links.heal([FORTH])
    with stage.dial() as connection:
        assert says(connection) == b"hello"


@pytest.mark.parametrize("flow", [FORTH, BACK])
def test_a_hung_link_keeps_what_came(stage: Stage, flow: Flow) -> None:
    stage.links.up(NODE, stage.process.pid)
    with stage.dial_when_open() as connection:
        assert says(connection) == b"hello"
        stage.links.hang([flow])
        connection.sendall(b"late")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        stage.links.heal([flow])
        connection.settimeout(5)
        assert connection.recv(100) == b"late"


def test_links_are_told_apart_by_who_dials(stage: Stage) -> None:
    stage.links.up(NODE, stage.process.pid)
    stage.dial_when_open().close()
    stage.links.up(OTHER, os.getpid())
    stage.links.cut([Flow(OTHER, NODE, "PLAINTEXT")])
    with pytest.raises(ConnectionResetError), stage.dial() as connection:
        connection.recv(1)
    command = [sys.executable, "-c", DIAL, str(stage.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"b'x'\n"
        assert stranger.stdin is not None
        stranger.stdin.close()
