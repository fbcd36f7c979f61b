"""`kpybroker users`: list, add and remove users who log in with SCRAM (KIP-554)."""

from __future__ import annotations

import getpass
import hashlib
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from kpybroker.cli import options
from kpybroker.cli.command_help import CommandGroup
from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.client.client import Client, CommandFailed, check
from kpybroker.errors import ConfigError, ErrorCode
from kpybroker.security.sasl.scram import MECHANISMS
from kpybroker.security.scram import DIGESTS, ITERATIONS_MAX, ITERATIONS_MIN, SALT_BITS, ScramMechanism, salt_of
from kpybroker.similar_names import nearest_name
from kpybroker.wire.rpc import alter_user_scram_credentials as alter
from kpybroker.wire.rpc import describe_user_scram_credentials as describe

DEFAULT_MECHANISM = "SCRAM-SHA-512"
MECHANISM_NAMES = {code: name for name, code in MECHANISMS.items()}
PASSWORD_BYTES_MAX = 1024

app = typer.Typer(
    name="users", cls=CommandGroup, help="List, add and remove the users who log in with SCRAM.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
Mechanism = Annotated[
    str | None, typer.Option("--mechanism", metavar="NAME", help=f"SCRAM-SHA-256 or {DEFAULT_MECHANISM}.")
]
Iterations = Annotated[
    int,
    typer.Option(
        "--iterations", metavar="N", min=ITERATIONS_MIN, max=ITERATIONS_MAX, help=f"Hash rounds ({ITERATIONS_MIN})."
    ),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="Read the password from the first line of this file."),
]


@app.command("list")
def list_(bootstrap: options.Bootstrap = None, timeout: options.Timeout = None, as_json: options.Json = False) -> None:
    """List the users with SCRAM credentials. Users of PLAIN are in the settings of the brokers."""

    async def show(client: Client) -> None:
        found = await _credentials(client)
        if as_json:
            show_json(
                [
                    {"user": user, "mechanism": mechanism, "iterations": iterations}
                    for user, mechanism, iterations in found
                ]
            )
        elif found:
            show_table(("USER", "MECHANISM", "ITERATIONS"), found)
        else:
            remark("no users; add one with `kpybroker users add`")

    options.run(show)


@app.command()
def add(
    name: Name,
    mechanism: Mechanism = None,
    iterations: Iterations = ITERATIONS_MIN,
    password_file: PasswordFile = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Add a user, or change a user's password. Prompts for the password, or reads it from standard input."""
    code = _mechanism(mechanism or DEFAULT_MECHANISM)
    password = _password(name, password_file)
    salt = salt_of(secrets.randbits(SALT_BITS))
    salted = hashlib.pbkdf2_hmac(DIGESTS[code], password, salt, iterations)
    row = alter.ScramCredentialUpsertion(
        name=name, mechanism=code, iterations=iterations, salt=salt, salted_password=salted
    )

    async def change(client: Client) -> None:
        await _alter(client, alter.Request(upsertions=[row]))
        if as_json:
            show_json({"user": name, "mechanism": MECHANISM_NAMES[code], "iterations": iterations})
        else:
            show_line(f"user {name} can log in with {MECHANISM_NAMES[code]}")

    options.run(change)


@app.command()
def remove(
    name: Name,
    mechanism: Mechanism = None,
    bootstrap: options.Bootstrap = None,
    timeout: options.Timeout = None,
    as_json: options.Json = False,
) -> None:
    """Remove a user's credential for --mechanism, or all credentials of the user."""
    only = None if mechanism is None else MECHANISM_NAMES[_mechanism(mechanism)]

    async def change(client: Client) -> None:
        every = await _credentials(client)
        held = [each for user, each, _ in every if user == name]
        removed = [each for each in held if only in (None, each)]
        if not removed:
            raise CommandFailed(_no_such_user(name, only, held, {user for user, _, _ in every}))
        for each in removed:  # a request may change only one mechanism of a user, as in Apache Kafka
            deletion = alter.ScramCredentialDeletion(name=name, mechanism=MECHANISMS[each])
            await _alter(client, alter.Request(deletions=[deletion]))
        if as_json:
            show_json({"user": name, "removed": removed})
        else:
            show_line(f"removed {', '.join(removed)} of user {name}")

    options.run(change)


def _no_such_user(name: str, only: str | None, held: list[str], known: set[str]) -> str:
    if held:
        return f"user {name} has no credential for {only}, only for {', '.join(held)}"
    near = nearest_name(name, known)
    meant = f"did you mean {near}?" if near is not None else "`kpybroker users list` lists all"
    return f"there is no user {name}; {meant}"


def _mechanism(name: str) -> ScramMechanism:
    """The mechanism with this name. Raises ConfigError."""
    if name.upper() not in MECHANISMS:
        raise ConfigError(f"--mechanism {name}: the mechanisms are {', '.join(MECHANISMS)}")
    return MECHANISMS[name.upper()]


async def _credentials(client: Client) -> list[tuple[str, str, int]]:
    """User, mechanism and iterations of each credential, sorted."""
    response = await client.ask("DescribeUserScramCredentials", describe.Request(users=None))
    check(response.error_code, response.error_message)
    return sorted(
        (row.user, MECHANISM_NAMES.get(info.mechanism, str(info.mechanism)), info.iterations)
        for row in response.results
        for info in row.credential_infos
    )


async def _alter(client: Client, request: alter.Request) -> None:
    async def attempt() -> None:
        for row in (await client.ask("AlterUserScramCredentials", request)).results:
            if request.deletions and row.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                continue  # it was listed a moment ago, so an earlier attempt or another client has removed it
            check(row.error_code, row.error_message)

    await client.patiently(attempt)


def _password(name: str, file: Path | None) -> bytes:
    """The password in UTF-8. Raises ConfigError with a text that never contains the password."""
    if file is not None:
        try:
            with file.open("rb") as opened:
                line = opened.readline(PASSWORD_BYTES_MAX + 2)
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror or error}; name a readable file") from None
    elif sys.stdin.isatty():
        line = getpass.getpass(f"password of {name}: ").encode()
        if getpass.getpass("the same again: ").encode() != line:
            raise ConfigError("the two passwords differ; nothing was changed")
    else:
        line = sys.stdin.buffer.readline(PASSWORD_BYTES_MAX + 2)
    password = line.rstrip(b"\r\n")
    if not password:
        raise ConfigError("the password is empty; type one, or pass it with --password-file or on standard input")
    if len(password) > PASSWORD_BYTES_MAX:
        raise ConfigError(f"the password has more than {PASSWORD_BYTES_MAX} bytes")
    try:
        password.decode()
    except UnicodeDecodeError:
        raise ConfigError("the password is not UTF-8") from None
    return password
