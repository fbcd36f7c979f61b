"""Hostile clients of listeners with TLS and logins, none of which can log in. They have the interface of
`chaos/hostile.py`."""

from __future__ import annotations

import contextlib
import ssl
import struct
import threading
from collections.abc import Callable
from random import Random

from chaos.hostile import FLOOD_BYTES, TIMEOUT_S, Connections, Dial, dial
from kpybroker.client.login import LoginFailed
from kpybroker.config.login import Login
from kpybroker.wire.api import by_name
from oracle.asking import Conversation, Door

HALVES = 24
TLS_RECORD = bytes.fromhex("16030102000100 01fc0303")
"""The beginning of a ClientHello of 512 bytes."""
FLOODERS = 8
GUESSERS = 3
SCRAM, PLAIN = "SCRAM-SHA-256", "PLAIN"
API_VERSIONS = struct.pack(">ihhih", 10, by_name["ApiVersions"].key, 0, 1, -1)
PRODUCE = struct.pack(">ihhih", FLOOD_BYTES, by_name["Produce"].key, 9, 1, -1).ljust(FLOOD_BYTES + 4, b"\0")


class HalfHandshakes(Connections):
    """Connections that begin a handshake, send one byte of it per step, and are sometimes closed and opened again."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, HALVES, dial)
        self._steps = 0
        self.send(TLS_RECORD)

    def step(self) -> None:
        self._steps += 1
        if self._steps % 10 == 0:
            self.connect_again()
            self.send(TLS_RECORD)
        self.send(b"\0")


class PlainText(Connections):
    """Connections that send plain text to a listener with TLS, and are opened again in each step."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, FLOODERS, dial)

    def step(self) -> None:
        self.send(API_VERSIONS)
        self.send(PRODUCE)
        self.connect_again()


class Unauthenticated(Connections):
    """Connections that finish the handshake and send large requests instead of a login; they are opened again in each
    step."""

    def __init__(self, address: tuple[str, int], dial: Dial) -> None:
        super().__init__(address, FLOODERS, dial)

    def step(self) -> None:
        self.send(API_VERSIONS)
        self.send(PRODUCE)
        self.connect_again()


class Guessers:
    """Clients that try wrong passwords for existing and unknown users. `let_in` is called with a user whose login
    succeeded."""

    def __init__(
        self,
        address: tuple[str, int],
        context: ssl.SSLContext,
        users: list[str],
        seed: int,
        let_in: Callable[[str], None],
    ) -> None:
        self._address = address
        self._context = context
        self._users = users
        self._let_in = let_in
        self._is_wanted = True
        self._threads = [
            threading.Thread(target=self._guess, args=(Random(seed + number),), daemon=True)
            for number in range(GUESSERS)
        ]
        for one in self._threads:
            one.start()

    def _guess(self, random: Random) -> None:
        while self._is_wanted:
            user, mechanism = random.choice(self._users), random.choice((PLAIN, SCRAM, "SCRAM-SHA-512"))
            login = Login(mechanism, user, f"wrong-{random.random()}")
            with contextlib.suppress(OSError):
                try:
                    Conversation(self._address, TIMEOUT_S, Door(self._context, login)).close()
                    self._let_in(user)
                except LoginFailed:
                    pass

    def step(self) -> None:
        return

    def close(self) -> None:
        """Stop after the guess in progress."""
        self._is_wanted = False
