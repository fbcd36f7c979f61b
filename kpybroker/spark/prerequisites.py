"""Checks the prerequisites of a job before Spark starts. Each check is fast, and fails with one line of text."""

import os
import re
import shutil
import socket
from pathlib import Path

from kpybroker.client.client import Client
from kpybroker.errors import ConfigError
from kpybroker.spark.cluster import Cluster
from kpybroker.spark.connector import CONNECT_TIMEOUT_S, Version
from kpybroker.wire.rpc import metadata

OLDEST_SPARK = (3, 5, 0)
OLDEST_JAVA = 17


def spark_version() -> Version:
    """The installed PySpark's version. Raises ConfigError if there is none, or it is older than 3.5."""
    try:
        import pyspark
    except ImportError as error:
        raise ConfigError("PySpark is not installed: pip install 'kpybroker[spark]'") from error
    number = re.match(r"(\d+)\.(\d+)\.(\d+)", pyspark.__version__)
    version = tuple(map(int, number.groups())) if number else (0, 0, 0)
    if version < OLDEST_SPARK:
        raise ConfigError(f"PySpark {pyspark.__version__} is too old, 3.5 is required: pip install --upgrade pyspark")
    major, minor, patch = version
    return major, minor, patch


def require_java() -> None:
    """Raise ConfigError unless Spark will find Java 17 or later."""
    home = os.environ.get("JAVA_HOME")
    place = f"under JAVA_HOME={home}" if home else "on the PATH"
    way_out = "install it, e.g. apt install openjdk-17-jre-headless"
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        raise ConfigError(f"Spark needs Java {OLDEST_JAVA}, but there is none {place}: {way_out}")
    release = (
        Path(java).resolve().parent.parent / "release"
    )  # running `java -version` takes a tenth of a second or more
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(), re.MULTILINE) if release.exists() else None
    if found and int(found[1]) < OLDEST_JAVA:
        raise ConfigError(f"Spark needs Java {OLDEST_JAVA}, but the one {place} is Java {found[1]}: {way_out}")


async def _any_request(client: Client) -> None:
    """Send a request that a listener with logins serves only after a login."""
    await client.ask("Metadata", metadata.Request(topics=[], allow_auto_topic_creation=False))


def require_broker(cluster: Cluster) -> None:
    """Raise ConfigError unless a broker of the cluster responds and accepts this client's login."""
    require_listener(cluster.bootstrap)
    cluster.ask(_any_request)


def require_listener(bootstrap: str) -> None:
    """Raise ConfigError unless one address of `bootstrap` ("host:port,host:port") accepts a connection."""
    addresses = bootstrap.split(",")
    parted = [address.strip().rpartition(":") for address in addresses]
    for address, (host, _, port) in zip(addresses, parted, strict=True):
        if not (host and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigError(f"bootstrap address {address!r} is not of the form host:port")
    reasons = []
    for address, (host, _, port) in zip(addresses, parted, strict=True):
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S / len(addresses)).close()
            return
        except OSError as error:
            reasons.append(f"{address} ({error})")
    raise ConfigError(
        f"no broker responds at {', '.join(reasons)}: start one with `kpybroker dev`, or give its address"
    )
