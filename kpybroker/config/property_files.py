"""Reads a properties file of a broker or of a client, as Apache Kafka does."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from kpybroker.config.effect import BROKER, key_of
from kpybroker.config.properties import parse_properties
from kpybroker.errors import ConfigError

log = logging.getLogger(__name__)

OTHERS = 0o007
"""The mode bits of users who are neither the owner nor in the group."""
PUBLIC = ("ssl.keystore.certificate.chain", "ssl.truststore.certificates")
"""Settings that Apache Kafka hides although they hold only certificates, which are not secret."""


def read_properties(path: Path) -> dict[str, str]:
    """Settings by name. Raises ConfigError.

    If other users can read a file that contains a secret, this logs a warning. Key stores that other users can read are
    refused. Properties files are not refused, because Apache Kafka accepts them, and nodes and scripts that work today
    would stop working.
    """
    try:
        text, mode = path.read_text(encoding="utf-8"), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; name a readable properties file") from error
    found = dict(parse_properties(text, str(path)))
    secrets = [name for name in found if _is_secret(name)]
    if secrets and mode & OTHERS:
        _warn_once(path, secrets[0])
    return found


@cache
def _warn_once(path: Path, name: str) -> None:
    """Log the warning once for each file, because a command reads the file of --command-config more than once."""
    log.warning(
        "%s holds %s, and every user of this machine can read or change it; run: chmod o-rwx %s", path, name, path
    )


def _is_secret(name: str) -> bool:
    key = key_of(BROKER, name)
    return key is not None and key.sensitive and key.name not in PUBLIC
