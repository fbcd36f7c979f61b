"""Parses HTTP URLs: `http://host:port/path?query`, or the same with https."""

from __future__ import annotations

import re
from typing import NamedTuple

SCHEMES = {"http": 80, "https": 443}
"""The supported schemes and their default ports."""
URL_MAX = 2048
WRITTEN = re.compile(r"[\x21-\x7e]+")
"""The characters of a valid URL. None of them can end a line of the HTTP request."""


class HttpUrl(NamedTuple):
    """A parsed URL: `target` is the path with the query."""

    scheme: str
    host: str
    port: int
    target: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"

    @property
    def authority(self) -> str:
        """Host and port, as in the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == SCHEMES[self.scheme] else f"{host}:{self.port}"

    def followed(self, location: str) -> HttpUrl:
        """The URL that a redirect leads to. Raises ValueError with the reason."""
        from urllib.parse import urljoin

        return parse_url(urljoin(str(self), location))


def parse_url(text: str) -> HttpUrl:
    """Parse a URL. Raises ValueError with the reason."""
    from urllib.parse import urlsplit  # imported here, because few brokers need it

    if len(text) > URL_MAX or not WRITTEN.fullmatch(text):
        raise ValueError(f"it must have at most {URL_MAX} ASCII characters, and no spaces")
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        raise ValueError("it must begin with http:// or https://")
    if not parts.hostname:
        raise ValueError("it has no host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it must have no user and no password")
    port = parts.port  # raises ValueError
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return HttpUrl(parts.scheme, parts.hostname, SCHEMES[parts.scheme] if port is None else port, target)
