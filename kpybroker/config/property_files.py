"""Reads a property file, of a broker or of a client, as Apache Kafka does."""

from __future__ import annotations

from pathlib import Path

from kpybroker.config.properties import parse_properties
from kpybroker.errors import ConfigError


def read_properties(path: Path) -> dict[str, str]:
    """Settings by name. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; name a readable property file") from error
    return dict(parse_properties(text, str(path)))
