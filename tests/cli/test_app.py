"""Tests of the commands that need no broker, and of the whole program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from kpybroker import BUILD, __version__
from kpybroker.cli.app import app
from kpybroker.cli.command_table import COMMANDS
from kpybroker.testing import Broker
from kpybroker.wire.api import API
from tests.cli.shell import Shell, kpybroker_process

WAIT_S = 60
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs commands without a broker."""
    return Shell(NOWHERE, monkeypatch)


def test_the_api_table_matches_the_served_apis(offline: Shell) -> None:
    told = offline("api", "--json").json
    assert [(row["key"], row["api"]) for row in told] == [(api.key, api.name) for api in API]
    head, _, *rows = offline("api").out.splitlines()
    assert head.split()[:3] == ["KEY", "API", "VERSIONS"]
    assert [row.split()[1] for row in rows] == [api.name for api in API]
    markdown = offline("api", "--markdown").out.splitlines()
    assert len(markdown) == 2 + len(API)
    assert len({line.count("|") for line in markdown}) == 1


def test_the_version_is_printed(offline: Shell) -> None:
    assert offline("version") == (0, f"{__version__} ({BUILD})\n", "")


def test_the_version_and_the_help_have_their_usual_options(offline: Shell) -> None:
    assert offline("--version") == (0, f"kpybroker {__version__} ({BUILD})\n", "")
    for path in commands():
        if path not in (("dev",), ("serve",)):  # typer does not read these options either
            assert offline(*path, "-h") == offline(*path, "--help")


def test_the_command_list_matches_the_help_pages() -> None:
    program: Any = get_command(app)
    for name, (_, summary) in COMMANDS.items():
        assert " ".join(program.commands[name].help.split("\n\n")[0].split()) == summary


def test_a_command_imports_no_modules_of_other_commands() -> None:
    """Most of the time until a command begins is spent on imports."""
    code = (
        "import sys\nfrom kpybroker.cli.commands import run_command\nassert run_command(['version']) == 0\n"
        "print([name for name in sys.modules if name.startswith(('kpybroker.storage', 'kpybroker.controller', "
        "'kpybroker.cli.topics', 'kpybroker.archive'))])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [f"{__version__} ({BUILD})", "[]"]


def commands() -> list[tuple[str, ...]]:
    """Every command, including groups of commands and the program itself."""
    found: list[tuple[str, ...]] = []

    def walk(command: Any, path: tuple[str, ...]) -> None:
        found.append(path)
        for name, one in getattr(command, "commands", {}).items():
            walk(one, (*path, name))

    walk(get_command(app), ())
    return found


@pytest.mark.parametrize("path", commands(), ids=" ".join)
def test_every_help_page_explains_every_option(path: tuple[str, ...], offline: Shell) -> None:
    command: Any = get_command(app)
    for name in path:
        command = command.commands[name]
    assert command.help
    for parameter in command.params:
        assert parameter.help, f"{parameter.opts} has no help"
        assert parameter.help.endswith((".", ").")), f"{parameter.opts}: {parameter.help}"
    if path in ((), ("dev",), ("serve",)):  # before the commands: see `cli/early.py`
        process = kpybroker_process(*path, "--help")
        out, err = process.communicate(timeout=WAIT_S)
        code: int | None = process.returncode
    else:
        code, out, err = offline(*path, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: {' '.join(('kpybroker', *path))} [OPTIONS]"), "one style for all pages"
    assert not re.search(r"[│╭]|<[a-z]+>|<=", out), out
    shown = " ".join(out.split())
    for parameter in command.params:
        is_hidden = getattr(parameter, "hidden", False)
        for option in (option for option in parameter.opts if option.startswith("--")):
            assert (option in shown.split()) is not is_hidden or f"{option}," in shown


def families() -> list[tuple[str, ...]]:
    """Commands that are incomplete without a subcommand."""
    found = []
    for path in commands():
        command: Any = get_command(app)
        for name in path:
            command = command.commands[name]
        if hasattr(command, "commands") and not command.invoke_without_command:
            found.append(path)
    return found


@pytest.mark.parametrize("path", families(), ids=" ".join)
def test_a_group_without_a_subcommand_shows_its_help(path: tuple[str, ...], offline: Shell) -> None:
    """The help is printed on stderr, with the exit code for wrong arguments."""
    assert offline(*path) == (2, "", offline(*path, "--help").out)


def test_the_program_alone_shows_its_help() -> None:
    process = kpybroker_process()
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("Usage: kpybroker [OPTIONS] COMMAND ...\n")


@pytest.mark.parametrize(
    ("arguments", "module"),
    [(("topics", "list"), "kpybroker.cli.commands"), (("topics", "list"), "typer"), (("dev",), "kpybroker.cli.early")],
)
def test_an_interrupt_while_modules_are_imported(arguments: tuple[str, ...], module: str) -> None:
    """Ctrl-C arrives at the very beginning, before there is anything to stop."""
    code = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        f"sys.argv[1:] = {arguments!r}\n"
        "from kpybroker.__main__ import main\n"
        "main()\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (130, "", "")


@pytest.mark.parametrize("command", [("topics", "list"), ("groups", "list"), ("produce", "t"), ("consume", "t")])
def test_an_error_names_the_address_without_a_server(offline: Shell, command: tuple[str, ...]) -> None:
    answer = offline(*command)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith(f"kpybroker: no server listens at {NOWHERE}: start a broker with `kpybroker dev`")


def test_common_options_may_precede_the_command(kpybroker: Broker, offline: Shell) -> None:
    assert offline("--bootstrap", kpybroker.bootstrap, "topics", "list", "--json").code == 0
    assert offline("--bootstrap", NOWHERE, "topics", "list", "--bootstrap", kpybroker.bootstrap, "--json").code == 0
    assert offline("topics", "list").code == 1, "nothing is remembered from one command to the next"


@pytest.mark.parametrize("option", ["--bootstrap", "--command-config"])
def test_an_empty_option_is_refused(offline: Shell, option: str) -> None:
    """A script whose variable is not set must not use the default cluster."""
    for command in (("topics", "list", option, ""), (option, "", "topics", "list")):
        answer = offline(*command)
        assert answer.code == 2
        assert "the value is empty" in answer.err


def test_a_reader_that_closes_the_pipe_is_not_an_error(kpybroker: Broker, shell: Shell, topic: str) -> None:
    shell("topics", "create", topic)
    shell("produce", topic, stdin=b"x" * 60_000)
    for _ in range(4):
        shell("produce", topic, stdin=b"y" * 60_000)
    process = kpybroker_process("consume", topic, "--from-beginning", "--bootstrap", kpybroker.bootstrap)
    assert process.stdout is not None
    assert process.stdout.read(1) == "x"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize("arguments", [("api",), ("--help",), ("brokers", "list"), ("configs", "get", "--all-brokers")])
def test_a_full_standard_output_is_reported_in_one_line(kpybroker: Broker, arguments: tuple[str, ...]) -> None:
    environment = {**os.environ, "KPYBROKER_BOOTSTRAP": kpybroker.bootstrap}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "kpybroker", *arguments, *(["--all"] if "configs" in arguments else [])]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (ended.stderr, ended.returncode) == (
        "kpybroker: cannot write to standard output: No space left on device\n",
        1,
    )
