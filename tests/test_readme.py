"""The README's quick start is true: its blocks are run as they stand, on a broker with another port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from kpybroker.config import BrokerConfig
from kpybroker.testing.process import BrokerProcess

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = dict(re.findall(r"<!-- quickstart: (\w+) -->\n```\w+\n(.*?)```", README, re.DOTALL))
FIRST_STEPS = next(block for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "pip install" in block)
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
    assert set(BLOCKS) == {"confluent", "transactions", "shell", "pytest"}


def test_confluent(kpybroker: BrokerProcess) -> None:
    assert run([sys.executable, "-"], BLOCKS["confluent"], kpybroker.bootstrap) == "b'en' b'hello'\n"


def test_transactions(kpybroker: BrokerProcess) -> None:
    said = run([sys.executable, "-"], BLOCKS["transactions"], kpybroker.bootstrap)
    assert said == "b'commit_transaction' [1]\n"


def test_shell(kpybroker: BrokerProcess) -> None:
    said = run(["bash", "-s"], IN_A_SHELL + BLOCKS["shell"], kpybroker.bootstrap).splitlines()
    assert said[:4] == ["created orders", "one", "two", "three"]
    assert ["orders", "3", "1", "3"] in [line.split() for line in said[4:]]


def test_pytest(tmp_path: Path) -> None:
    """In a directory with nothing else in it: the fixture comes by the entry point of the installed package."""
    (entry,) = (entry for entry in entry_points(group="pytest11") if entry.name == "kpybroker")
    assert entry.value == "kpybroker.testing.plugin"
    (tmp_path / "test_my_service.py").write_text(BLOCKS["pytest"])
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("1 passed")


def test_the_first_steps(tmp_path: Path) -> None:
    """The block that installs and starts: another port, and the line it prints is of the form shown under it."""
    install, start = FIRST_STEPS.splitlines()
    assert install == "pip install ."
    program = Path(sys.executable).parent / "kpybroker"
    assert program.exists(), "the command is installed with the package"
    command = [str(program), *start.replace("9092", "0").split()[1:], "--ephemeral"]
    shown, *_ = re.findall(r"^kpybroker ready .*$", README, re.MULTILINE)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        printed = process.stdout.readline()
        process.terminate()
        assert process.wait(WAIT_S) == 0
    as_shown = re.sub(r"(bootstrap=127\.0\.0\.1:|data=/|pid=)\S+", r"\1…", shown)
    assert re.sub(r"(bootstrap=127\.0\.0\.1:|data=/|pid=)\S+", r"\1…", printed) == as_shown + "\n"


def test_every_target_named_is_one_of_make() -> None:
    made = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make (\w+)", README, re.MULTILINE))
    assert named >= {"run", "test"}
    assert named <= made


def test_every_setting_named_is_one() -> None:
    for text in re.findall(r"--set (\w+\.[\w.]+=\w+)", README):
        BrokerConfig.parse(dict([text.split("=")]))


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_block_is_tested() -> None:
    """What is shown as a command or a program is run, or its parts are looked for, by one of these tests."""
    shown = set(re.findall(r"^```(?:sh|python)\n(.*?)```", README, re.MULTILINE | re.DOTALL))
    (make,) = (block for block in shown if block.startswith("make "))
    assert shown == {*BLOCKS.values(), FIRST_STEPS, make}


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^(?:.*\| )?kpybroker (\w+)", README, re.MULTILINE))))
def test_every_command_named_exists(command: str) -> None:
    if command == "ready":
        return
    from kpybroker.cli.command_table import COMMANDS

    assert command in COMMANDS
