"""Access control for the pages of `kpybroker.http.port`: TLS with a listener's stores, and bearer tokens (RFC 6750)."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError
from kpybroker.security.tls.contexts import RenewedContext, serving_context
from kpybroker.security.tls.settings import tls_settings
from kpybroker.server.connections.refusal_log import RefusalLog
from kpybroker.server.metrics.http import CONNECTIONS_MAX, Page
from kpybroker.world.secure import TlsAcceptor, read_store, stamp

if TYPE_CHECKING:
    from kpybroker.world import World

log = logging.getLogger(__name__)

TOKEN_FILE, TOKEN_PATHS = "kpybroker.http.token.file", "kpybroker.http.token.paths"
TLS_LISTENER = "kpybroker.http.tls.listener"
TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]{16,4096}=*")
"""A token as in RFC 6750 that is too long to be guessed."""
LOOKED_EVERY_MS = 1000
"""How often the token file is checked for changes."""
HTTPS = "use https:// for kpybroker.http.port"


class BearerToken:
    """The token in a file. The file is read again when it changes. If the changed file is invalid, the former token
    stays valid. The token is never logged."""

    def __init__(self, path: str, steady_ms: Callable[[], int]) -> None:
        """Read the token. Raises ConfigError if the file has no valid token."""
        self._path = path
        self._steady_ms = steady_ms
        self._looked_ms = steady_ms()
        self._stamp = stamp(path)
        self._token = self._read()

    def is_in(self, headers: Mapping[str, str]) -> bool:
        """Whether the headers of a request contain the token."""
        self._follow()
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_equal = hmac.compare_digest(given.strip().encode("latin-1"), self._token)
        return is_equal and scheme.lower() == "bearer"

    def _follow(self) -> None:
        now_ms = self._steady_ms()
        if now_ms - self._looked_ms < LOOKED_EVERY_MS:
            return
        self._looked_ms = now_ms
        found = stamp(self._path)
        if found == self._stamp:
            return
        self._stamp = found
        try:
            self._token = self._read()
        except ConfigError as error:
            log.error("the changed token is invalid, and the former token stays in use: %s", error)
        else:
            log.info("%s=%s: the changed token is now in use", TOKEN_FILE, self._path)

    def _read(self) -> bytes:
        said = f"{TOKEN_FILE}={self._path}"
        try:
            token = read_store(self._path).strip()
        except OSError as error:
            raise ConfigError(f"{said}: {error.strerror or error}") from None
        if TOKEN.fullmatch(token) is None:
            raise ConfigError(
                f"{said}: the file contains no valid token; write 16 to 4096 letters, digits and any of -._~+/ in one "
                f"line, for example with: (umask 077; openssl rand -hex 32 > {self._path})"
            )
        return token


class Access:
    """The TLS context and the token of the pages. `config` returns the current settings."""

    def __init__(self, world: World, config: Callable[[], BrokerConfig]) -> None:
        """Load the stores and the token. Raises ConfigError if they are invalid."""
        now = config()
        self._now = asyncio.get_running_loop().time
        self._log = RefusalLog(self._now())
        self._paths = frozenset(now.http_token_paths)
        self._token = BearerToken(now.http_token_file, world.steady_ms) if now.http_token_file else None
        if self._token is None and TOKEN_PATHS in now.static:
            raise ConfigError(f"{TOKEN_PATHS} needs a token; set {TOKEN_FILE}")
        self.tls: TlsAcceptor | None = None
        """The TLS context; None if the pages are served without TLS."""
        name = now.http_tls_listener
        if name:
            try:
                context = RenewedContext(
                    name,
                    lambda: tls_settings(config(), name),
                    lambda settings: serving_context(settings, world.wall_ms(), name),
                    world.steady_ms,
                )
            except ConfigError as error:
                raise ConfigError(f"{TLS_LISTENER}={name}: {error}") from None
            self.tls = TlsAcceptor(
                context.current, self._refuse_handshake, self._tls_broke, lambda _: None, HTTPS, CONNECTIONS_MAX
            )

    def refuse(self, path: str, host: str, headers: Mapping[str, str]) -> Page | None:
        """The response that refuses a request; None if the request may read the page."""
        if self._token is None or path not in self._paths or self._token.is_in(headers):
            return None
        has_one = "authorization" in headers
        self.tell(host, "the request for %s from %s had %s", path, host, "another token" if has_one else "no token")
        challenge = 'Bearer realm="kpybroker"' + (', error="invalid_token"' if has_one else "")
        return Page(
            401, b"this page needs the token: Authorization: Bearer TOKEN\n", headers=(("WWW-Authenticate", challenge),)
        )

    def tell(self, host: str, line: str, *about: object) -> None:
        """Log that a request from this address was refused; at most a few lines a minute."""
        self._log.look(self._now())
        self._log.tell(host, f"kpybroker.http.port: {line}", *about)

    def spoke_tls(self, host: str) -> None:
        """Log that a client of this address used TLS although the pages are served without TLS."""
        self.tell(host, "%s used TLS, and this port does not; use http://, or set %s", host, TLS_LISTENER)

    def close(self) -> None:
        """Log how many refusals were not logged."""
        self._log.sum_up()

    def _tls_broke(self, host: str, why: str) -> None:
        self.tell(host, "closed connection from %s: TLS failed: %s", host, why)

    def _refuse_handshake(self, host: str, why: str) -> None:
        self.tell(host, "refused connection from %s in the TLS handshake: %s", host, why)
