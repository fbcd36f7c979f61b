"""The settings with which clients connect to a broker with TLS and logins, for each client library."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, NamedTuple

from kpybroker.config import parse_properties
from kpybroker.config.login import login_of
from kpybroker.errors import ConfigError


class SecureClient(NamedTuple):
    """The user with all permissions. `properties` is a file for Apache Kafka's tools and `--command-config`."""

    user: str
    password: str
    mechanism: str
    authority: Path
    """The certificate that clients trust, in PEM."""
    properties: Path

    def __repr__(self) -> str:
        return f"SecureClient({self.user!r})"

    @classmethod
    def of(cls, properties: Path) -> SecureClient:
        """Read the file. Raises OSError, ConfigError."""
        found = parse_properties(properties.read_text(encoding="utf-8"), str(properties))
        login = login_of(found)
        if login is None:
            raise ConfigError(f"{properties} has no login")
        authority = Path(found["ssl.truststore.location"])
        return cls(login.user, login.password, login.mechanism, authority, properties)

    @property
    def confluent(self) -> dict[str, str]:
        """For confluent-kafka and other clients based on librdkafka."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
            "ssl.ca.location": str(self.authority),
        }

    @property
    def kafka_python(self) -> dict[str, str]:
        """Arguments for kafka-python."""
        return {**self._python, "ssl_cafile": str(self.authority)}

    @property
    def aiokafka(self) -> dict[str, Any]:
        """Arguments for aiokafka."""
        return {**self._python, "ssl_context": ssl.create_default_context(cafile=self.authority)}

    @property
    def _python(self) -> dict[str, str]:
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }
