"""Reads a properties file of a broker or of a client, as Apache Kafka does."""

from __future__ import annotations

import logging
import os
import stat
from functools import cache
from pathlib import Path

from kpybroker.config import parse_properties
from kpybroker.config.effect import BROKER, key_of
from kpybroker.errors import ConfigError

log = logging.getLogger(__name__)

PUBLIC = ("ssl.keystore.certificate.chain", "ssl.truststore.certificates")
"""Settings that Apache Kafka hides, although certificates are no secret."""


def read_properties(path: Path) -> dict[str, str]:
    """Settings by name. Raises ConfigError.

    A file with a secret that other users may read gets a warning, where one with a key is refused: Apache Kafka takes
    it, and where it is the usual one, a node would not start any more.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text, mode = file.read(), os.fstat(file.fileno()).st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; name a readable properties file") from error
    found = dict(parse_properties(text, str(path)))
    secrets = [name for name in found if _is_secret(name)]
    if secrets and mode & stat.S_IRWXO:
        _warn_once(path, secrets[0])
    return found


@cache
def _warn_once(path: Path, name: str) -> None:
    """A command reads the file of --command-config more than once."""
    log.warning(
        "%s holds %s, and every user of this machine may read or change it; run: chmod o-rwx %s", path, name, path
    )


def _is_secret(name: str) -> bool:
    key = key_of(BROKER, name)
    return key is not None and key.sensitive and key.name not in PUBLIC
