"""The settings with which a job connects to a cluster: addresses, and client properties for TLS and a login."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from kpybroker.client import session
from kpybroker.client.client import Client, CommandFailed
from kpybroker.client.librdkafka import librdkafka_settings
from kpybroker.config.client_properties import OF_SECURITY, check_client_properties
from kpybroker.config.property_files import read_properties
from kpybroker.errors import ConfigError

TIMEOUT_MS = 5_000
FILES = ("ssl.keystore.location", "ssl.truststore.location")


class Cluster(NamedTuple):
    """The address of a cluster, and the file with the properties for a login. Only the file has the secrets, and it is
    read whenever they are needed, so a Cluster can be printed and passed to another process.
    """

    bootstrap: str
    """host:port,host:port"""
    command_config: Path | None = None
    """A property file as `--command-config` and Kafka's tools read it; None for listeners without TLS and logins."""

    @classmethod
    def of(cls, cluster: Cluster | str) -> Cluster:
        """The cluster at an address. A Cluster is returned unchanged."""
        return cls(cluster) if isinstance(cluster, str) else cluster

    @classmethod
    def in_file(cls, command_config: Path) -> Cluster:
        """The cluster that the file names as `bootstrap.servers`. Raises ConfigError."""
        bootstrap = read_properties(command_config).get("bootstrap.servers")
        if not bootstrap:
            raise ConfigError(
                f"{command_config} has no bootstrap.servers: add it, or give the address with --bootstrap"
            )
        return cls(bootstrap, command_config)

    def properties(self) -> dict[str, str]:
        """The security settings, by Kafka's names. Raises ConfigError."""
        if self.command_config is None:
            return {}
        found = read_properties(self.command_config)
        check_client_properties(found)
        return {name: value for name, value in found.items() if name.startswith(OF_SECURITY)}

    def spark_options(self) -> dict[str, str]:
        """The options `kafka.*` of Spark's Kafka source and sink. They include the password. Raises ConfigError."""
        found = self.properties()
        for name in FILES:
            if found.get(name):
                found[name] = str(Path(found[name]).absolute())  # the JVM stays in its own working directory
        return {"kafka.bootstrap.servers": self.bootstrap, **{f"kafka.{name}": text for name, text in found.items()}}

    def confluent_settings(self) -> dict[str, str]:
        """Settings of confluent-kafka's clients. They include the password and the key. Raises ConfigError."""
        return {"bootstrap.servers": self.bootstrap, **librdkafka_settings(self.properties())}

    def ask(self, scenario: Callable[[Client], Awaitable[None]]) -> None:
        """Connect, log in, and run a coroutine with the client. Raises ConfigError."""
        try:
            properties = self.properties()
            with ThreadPoolExecutor(1) as thread:  # in a notebook, this thread already runs an event loop
                asked = thread.submit(session.run, scenario, self.bootstrap, TIMEOUT_MS, properties=properties)
                asked.result()
        except CommandFailed as error:
            raise ConfigError(str(error)) from error
