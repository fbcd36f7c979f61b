"""Sets up `kpybroker dev --secure`: TLS, a SCRAM user, and ACLs that allow everything, but only to that user."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import NamedTuple

from kpybroker.cli.formatting import FormatOptions, format_directories
from kpybroker.config.login import login_from
from kpybroker.config.properties import parse_properties
from kpybroker.config.security_keys import STANDARD_AUTHORIZER
from kpybroker.errors import ConfigError
from kpybroker.security.tls.private_authority import laptop_files, lasts_until_ms
from kpybroker.security.tls.stores import check_library
from kpybroker.storage.dirs.directory import is_formatted
from kpybroker.storage.dirs.formatting import encode_id, random_id
from kpybroker.world.real import real_world

USER, MECHANISM = "dev", "SCRAM-SHA-512"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
LISTENER = "listener.name.sasl_ssl"
PASSWORD_BYTES = 12
SUFFIX = ".secure"
"""Appended to the name of the data directory."""
CLIENT, AUTHORITY, SERVER = "client.properties", "ca.pem", "server.pem"
RENEWED_BEFORE_MS = 7 * 86_400_000


class SecureFiles(NamedTuple):
    """The files in DIR.secure, and the settings that a client needs. The repr does not contain the password."""

    directory: Path
    port: int
    password: str

    @property
    def client(self) -> Path:
        """The file with settings for Apache Kafka's clients and for --command-config."""
        return self.directory / CLIENT

    @property
    def authority(self) -> Path:
        """The certificate that clients trust."""
        return self.directory / AUTHORITY

    def __repr__(self) -> str:
        return f"SecureFiles({self.directory})"

    def settings(self) -> dict[str, str]:
        """The broker's settings, which override the other settings of `dev`."""
        return {
            "listeners": f"SASL_SSL://127.0.0.1:{self.port}",
            "inter.broker.listener.name": "SASL_SSL",
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            f"{LISTENER}.{MECHANISM.lower()}.sasl.jaas.config": _jaas(self.password),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.directory / SERVER),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.as_posix(),
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{USER}",
        }

    def explained(self) -> str:
        """Settings for various clients, with the password, as text to paste."""
        return (
            f"user {USER}, password {self.password}; other users: kpybroker users add, kpybroker acls allow\n"
            f"command line, Java: --command-config {self.client}\n"
            f"confluent-kafka: security.protocol=SASL_SSL sasl.mechanism={MECHANISM} sasl.username={USER} "
            f"sasl.password={self.password} ssl.ca.location={self.authority.as_posix()}\n"
            f'kafka-python: security_protocol="SASL_SSL", sasl_mechanism="{MECHANISM}", sasl_plain_username="{USER}", '
            f'sasl_plain_password="{self.password}", ssl_cafile="{self.authority.as_posix()}"'
        )


def prepare(data_dir: Path, port: int) -> SecureFiles:
    """Write the missing files to DIR.secure next to the data directory, readable by the owner only. Raises
    ConfigError."""
    check_library()
    found = SecureFiles(directory_of(data_dir), port, "")
    try:
        if found.client.exists():
            found = found._replace(password=_password_in(found.client))
        elif is_formatted(real_world(), str(data_dir)):
            raise ConfigError(
                f"{data_dir} was created without --secure, so it has no user; choose another --data-dir, or omit "
                "--secure"
            )
        else:
            found = found._replace(password=secrets.token_urlsafe(PASSWORD_BYTES))
        _write(found)
    except OSError as error:
        raise ConfigError(f"cannot write to {found.directory}: {error.strerror or error}") from None
    return found


def format_with_user(settings: dict[str, str], data_dir: Path, files: SecureFiles) -> None:
    """Format an empty data directory with the user's credential. Raises ConfigError, CommandFailed."""
    if not is_formatted(real_world(), str(data_dir)):
        credential = f"{MECHANISM}=[name={USER},password={files.password}]"
        cluster_id = encode_id(random_id(real_world().random))
        options = FormatOptions(cluster_id, standalone=True, scram=(credential,))
        for _ in format_directories(settings, "--secure", options):
            pass


def directory_of(data_dir: Path) -> Path:
    """DIR.secure. It is next to the data, because Apache Kafka takes every folder in a log directory for a
    partition."""
    return data_dir.with_name(data_dir.name + SUFFIX)


def _write(files: SecureFiles) -> None:
    files.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    now_ms = time.time_ns() // 1_000_000
    server = files.directory / SERVER
    if not server.exists() or lasts_until_ms(server.read_bytes()) < now_ms + RENEWED_BEFORE_MS:
        for name, content in laptop_files(now_ms).items():
            if name != "client.pem":
                _replace(files.directory / name, content)
    client = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": _jaas(files.password),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": files.authority.as_posix(),
    }
    if files.port:
        client["bootstrap.servers"] = f"127.0.0.1:{files.port}"
    _replace(files.client, "".join(f"{name}={text}\n" for name, text in client.items()).encode())


def _replace(path: Path, content: bytes) -> None:
    """Write a file that only the owner may read; readers see either the old file or the new one."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    partial.replace(path)


def _jaas(password: str) -> str:
    return f'{MODULE} required username="{USER}" password="{password}";'


def _password_in(path: Path) -> str:
    found = parse_properties(path.read_text(encoding="utf-8"), str(path))
    return login_from("sasl.jaas.config", found.get("sasl.jaas.config"), MECHANISM).password
