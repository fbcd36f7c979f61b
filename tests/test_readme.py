"""The README's quick start is true: its blocks are run as they stand, on a broker with another port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kpybroker.testing.process import BrokerProcess

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = dict(re.findall(r"<!-- quickstart: (\w+) -->\n```\w+\n(.*?)```", README, re.DOTALL))
WAIT_S = 60
IN_A_SHELL = 'set -eu\nkpybroker() { "$PYTHON" -m kpybroker "$@"; }\n'


def run(command: list[str], text: str, bootstrap: str) -> str:
    """What a block prints."""
    assert "127.0.0.1:9092" in README
    environment = {**os.environ, "KPYBROKER_BOOTSTRAP": bootstrap, "PYTHON": sys.executable}
    ended = subprocess.run(
        command,
        input=text.replace("127.0.0.1:9092", bootstrap),
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_block_is_known() -> None:
    assert set(BLOCKS) == {"confluent", "shell", "pytest"}


def test_confluent(kpybroker: BrokerProcess) -> None:
    assert run([sys.executable, "-"], BLOCKS["confluent"], kpybroker.bootstrap) == "b'en' b'hello'\n"


def test_shell(kpybroker: BrokerProcess) -> None:
    said = run(["bash", "-s"], IN_A_SHELL + BLOCKS["shell"], kpybroker.bootstrap).splitlines()
    assert said[:4] == ["created orders", "one", "two", "three"]
    assert ["orders", "3", "1", "3"] in [line.split() for line in said[4:]]


def test_pytest(kpybroker: BrokerProcess) -> None:
    block: dict[str, Any] = {}
    exec(BLOCKS["pytest"], block)
    tests = [name for name in block if name.startswith("test_")]
    assert tests
    for name in tests:
        block[name](kpybroker)


def test_the_ready_line_is_as_shown() -> None:
    (line,) = re.findall(r"^kpybroker ready .*$", README, re.MULTILINE)
    assert [word.split("=")[0] for word in line.split()] == ["kpybroker", "ready", "bootstrap", "data", "pid"]


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^(?:.*\| )?kpybroker (\w+)", README, re.MULTILINE))))
def test_every_command_named_exists(command: str) -> None:
    if command == "ready":
        return
    from kpybroker.cli.app import app

    names = {each.name or (each.callback.__name__ if each.callback else "") for each in app.registered_commands}
    assert command in names | {group.name or group.typer_instance.info.name for group in app.registered_groups}
