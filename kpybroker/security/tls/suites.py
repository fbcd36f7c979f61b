"""Translates TLS versions and cipher suites from Java's names, which Kafka's settings use, to OpenSSL's (RFC 5289)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kpybroker.errors import ConfigError

VERSIONS = ("TLSv1.2", "TLSv1.3")
SUITES_1_3 = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
"""The suites of TLS 1.3. OpenSSL always offers all of them, because Python cannot select some of them."""
SUITES_1_2: Mapping[str, str] = {
    f"TLS_{exchange}_WITH_{java}": f"{exchange.replace('_', '-')}-{openssl}"
    for exchange in ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
    for java, openssl in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
"""OpenSSL's names by Java's names. Suites without forward secrecy or with CBC are not offered."""


class Suites(NamedTuple):
    """The lowest and the highest version, and the TLS 1.2 suites in OpenSSL's form; empty for OpenSSL's default."""

    lowest: str
    highest: str
    ciphers: str


def suites(protocols: Sequence[str], named: Sequence[str]) -> Suites:
    """The suites that `ssl.enabled.protocols` and `ssl.cipher.suites` allow. Raises ConfigError if they are not
    supported."""
    versions = [version for version in VERSIONS if version in protocols]
    if not versions or set(protocols) - set(VERSIONS):
        raise ConfigError(f"ssl.enabled.protocols={','.join(protocols)}: name {' or '.join(VERSIONS)}, or both")
    wanted = set(named)
    unknown = sorted(wanted - SUITES_1_3 - set(SUITES_1_2))
    if unknown:
        raise ConfigError(
            f"ssl.cipher.suites: {unknown[0]} is not served; name some of {', '.join(sorted(SUITES_1_2))} or all of "
            f"{', '.join(sorted(SUITES_1_3))}"
        )
    if wanted:
        newest = wanted & SUITES_1_3
        if newest and newest != SUITES_1_3:
            raise ConfigError(
                f"ssl.cipher.suites: the suites of TLS 1.3 cannot be chosen individually; name all of "
                f"{', '.join(sorted(SUITES_1_3))}, or none to serve TLS 1.2 alone"
            )
        older = wanted - SUITES_1_3
        versions = [each for each in versions if (newest if each == "TLSv1.3" else older)]
        if not versions:
            raise ConfigError("ssl.cipher.suites: none of them belongs to a version in ssl.enabled.protocols")
    return Suites(versions[0], versions[-1], ":".join(SUITES_1_2[name] for name in named if name in SUITES_1_2))
