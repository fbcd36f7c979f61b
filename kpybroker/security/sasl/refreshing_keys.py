"""Keeps an identity provider's keys up to date: reads them when their file changes, or fetches them from their URL.

As in Apache Kafka, no client can log in while the file is unreadable. If the URL does not respond, the previous keys
stay in use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from kpybroker.config.oauth_settings import KEYS_URL, KeysFile, KeysUrl
from kpybroker.errors import ConfigError
from kpybroker.security.sasl.exchange import Preparation
from kpybroker.security.sasl.key_sets import NO_KEYS, KeySet, parse_keys
from kpybroker.world.secure import read_public, stamp

log = logging.getLogger(__name__)

OffLoop = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs work on a thread."""
Get = Callable[[], Awaitable[bytes]]
"""Fetches the URL. Raises OSError."""
AGAIN_AFTER_S = 1.0
"""The shortest time between two fetches that are caused by tokens with unknown keys. Apache Kafka has no limit."""
MISSING_MAX = 16
MISSING_KID_MAX = 1000
MISSING_FOR_MS = 60_000
"""The time for which a missing key does not cause another fetch."""


class FileKeys:
    """The keys in a file. `load` must be called first."""

    def __init__(self, listener: str, settings: KeysFile, off_loop: OffLoop) -> None:
        self._listener = listener
        self._path = settings.path
        self._off_loop = off_loop
        self._stamp: tuple[int, ...] = ()
        self._reading: asyncio.Task[None] | None = None
        self.current = NO_KEYS

    async def load(self) -> None:
        """Read the file. Raises ConfigError if it cannot be read or is not a key set."""
        try:
            self._stamp = stamp(self._path)
            self.current = await _parsed(await self._read(), self._off_loop)
        except (OSError, ValueError) as error:
            raise ConfigError(f"listener {self._listener}: {KEYS_URL}=file://{self._path}: {error}") from None
        _tell(self._listener, self.current)

    async def follow(self) -> None:
        """Does nothing, because the file is checked at each login."""

    def missing(self, kid: str) -> None:
        """Does nothing, because the file has no other keys."""

    def preparation(self) -> Preparation | None:
        """Read the file again if it has changed."""
        return None if stamp(self._path) == self._stamp else self._renewed

    async def _renewed(self) -> None:
        """Wait until the file has been read. Logins that wait at the same time share one read."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._renew())
            self._reading.add_done_callback(self._has_read)
        await asyncio.shield(self._reading)

    def _has_read(self, _: asyncio.Task[None]) -> None:
        self._reading = None

    async def _renew(self) -> None:
        try:
            await self.load()
        except ConfigError as error:
            self.current = NO_KEYS
            log.error("%s; until it can be used, no token logs in", error)

    async def _read(self) -> bytes:
        found: list[bytes] = []
        await self._off_loop(lambda: found.append(read_public(self._path)))
        return found[0]


class UrlKeys:
    """The keys at a URL. `load` must be called first; then `follow` must run."""

    def __init__(
        self, listener: str, settings: KeysUrl, get: Get, steady_ms: Callable[[], int], off_loop: OffLoop
    ) -> None:
        self._listener = listener
        self._settings = settings
        self._get = get
        self._steady_ms = steady_ms
        self._off_loop = off_loop
        self._wanted = asyncio.Event()
        self._missing: dict[str, int] = {}
        """The time until which a missing key does not cause another fetch, by key id."""
        self.current = NO_KEYS

    def preparation(self) -> None:
        return None

    async def load(self) -> None:
        """Fetch the keys. Raises ConfigError if there is no response or no key set in it, because without keys no
        client could log in."""
        try:
            await self._ask_patiently()
        except (OSError, ValueError) as error:
            raise ConfigError(f"listener {self._listener}: {KEYS_URL}={self._settings.url}: {error}") from None
        _tell(self._listener, self.current)

    async def follow(self) -> None:
        """Fetch the keys every `refresh.ms`, and soon after a token has named a missing key. Never returns."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._settings.refresh_ms / 1000)
            self._wanted.clear()
            try:
                await self._ask_patiently()
            except (OSError, ValueError) as error:
                log.warning(
                    "listener %s: the previous token keys stay in use: %s=%s: %s",
                    self._listener,
                    KEYS_URL,
                    self._settings.url,
                    error,
                )
            await asyncio.sleep(AGAIN_AFTER_S)

    def missing(self, kid: str) -> None:
        """Fetch the keys soon, unless the same missing key caused a fetch a short time ago."""
        now_ms = self._steady_ms()
        if len(kid) > MISSING_KID_MAX or self._missing.get(kid, now_ms) > now_ms:
            return
        self._missing.pop(kid, None)
        self._missing[kid] = now_ms + MISSING_FOR_MS  # so that it is evicted last
        if len(self._missing) > MISSING_MAX:
            del self._missing[next(iter(self._missing))]
        self._wanted.set()

    async def _ask_patiently(self) -> None:
        """Retry the fetch until it succeeds or `retry.backoff.max.ms` has passed. Raises OSError, ValueError."""
        settings, began_ms, wait_ms = self._settings, self._steady_ms(), self._settings.backoff_ms
        while True:
            try:
                self.current = await _parsed(await self._get(), self._off_loop)
            except (OSError, ValueError):
                left_ms = began_ms + settings.backoff_max_ms - self._steady_ms()
                if min(wait_ms, left_ms) <= 0:
                    raise
                await asyncio.sleep(min(wait_ms, left_ms) / 1000)
                wait_ms *= 2
            else:
                for key in self.current.keys:
                    self._missing.pop(key.kid or "", None)
                return


def _tell(listener: str, keys: KeySet) -> None:
    log.info("listener %s: loaded %d token keys", listener, len(keys.keys))
    if keys.left_out or not keys.keys:
        log.warning(
            "listener %s: %d keys are not used: they are too short, of an unknown kind, or not for signatures",
            listener,
            keys.left_out,
        )


async def _parsed(data: bytes, off_loop: OffLoop) -> KeySet:
    """Parse a key set on a thread, because a large one takes a while. Raises ValueError."""
    found: list[KeySet] = []
    await off_loop(lambda: found.append(parse_keys(data)))
    return found[0]
