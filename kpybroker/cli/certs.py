"""`kpybroker certs`: certificates for TLS on a laptop."""

from __future__ import annotations

import ipaddress
import os
import re
import time
from pathlib import Path
from typing import Annotated

import typer

from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.show import show_line
from kpybroker.client.client import CommandFailed
from kpybroker.errors import ConfigError
from kpybroker.security.tls.private_authority import laptop_files
from kpybroker.security.tls.stores import check_library

app = typer.Typer(
    name="certs", cls=CommandGroup, help="Make certificates for listeners with TLS.", no_args_is_help=True
)
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
DNS_NAME = re.compile(rf"(\*\.)?{LABEL}(\.{LABEL})*")
DNS_NAME_MAX = 253
SETTINGS = """\
# server.properties
listeners=PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093
ssl.keystore.type=PEM
ssl.keystore.location={at}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={at}/ca.pem
# with this line, clients must show a certificate, e.g. client.pem
#ssl.client.auth=required

# librdkafka, confluent-kafka
bootstrap.servers=localhost:9093
security.protocol=SSL
ssl.ca.location={at}/ca.pem
ssl.certificate.location={at}/client.pem
ssl.key.location={at}/client.pem

# Java
bootstrap.servers=localhost:9093
security.protocol=SSL
ssl.truststore.type=PEM
ssl.truststore.location={at}/ca.pem
ssl.keystore.type=PEM
ssl.keystore.location={at}/client.pem

# kafka-python
KafkaProducer(bootstrap_servers="localhost:9093", security_protocol="SSL", ssl_cafile="{at}/ca.pem",
              ssl_certfile="{at}/client.pem", ssl_keyfile="{at}/client.pem")"""


@app.callback()
def family() -> None:
    """Make certificates for listeners with TLS."""


@app.command()
def dev(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files are written.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="An additional DNS name or IP address of brokers. Repeatable."),
    ] = None,
) -> None:
    """Write a private authority and certificates for localhost, and print the settings of brokers and clients."""
    for host in hosts or ():
        if not _is_host(host):
            raise ConfigError(f"--host {host[:DNS_NAME_MAX]}: write a DNS name or an IP address, without a port")
    try:
        check_library()
    except ConfigError as error:
        raise CommandFailed(str(error)) from None
    at = directory.resolve()
    try:
        at.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in laptop_files(time.time_ns() // 1_000_000, hosts or ()).items():
            _write_new(at / name, content)
    except FileExistsError as error:
        raise CommandFailed(f"{error.filename} already exists; remove it, or name another directory") from None
    except OSError as error:
        raise CommandFailed(f"cannot write to {at}: {error.strerror or error}") from None
    show_line(SETTINGS.format(at=at.as_posix()))


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return len(text) <= DNS_NAME_MAX and DNS_NAME.fullmatch(text) is not None
    return True


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that only the owner can read. Raises FileExistsError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
