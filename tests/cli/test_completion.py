"""Tests of completion: every command and option is completed, and the shells accept the scripts."""

from __future__ import annotations

import subprocess

import pytest

from kpybroker.cli.command_table import COMMANDS
from tests.cli.shell import Shell


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs commands without a broker."""
    return Shell("127.0.0.1:1", monkeypatch)


def completed(script: str, *typed: str) -> list[str]:
    """The completions that bash proposes for the last of these words."""
    words = " ".join(f"'{word}'" for word in ("kpybroker", *typed))
    program = f'{script}\nCOMP_WORDS=({words})\nCOMP_CWORD={len(typed)}\n_kpybroker\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    told = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert told.stderr == ""
    return told.stdout.split()


def test_all_commands_and_options_are_known(offline: Shell) -> None:
    words = offline("completion", "bash", "--json").json
    assert words[""][: len(COMMANDS)] == list(COMMANDS)
    assert {"--detach", "--brokers", "--help"} <= set(words["/dev"])
    assert {"--partitions", "--json", "--help"} <= set(words["/topics/create"])
    assert all(words.values())


def test_bash_completes(offline: Shell) -> None:
    script = offline("completion", "bash").out
    assert completed(script, "to") == ["topics"]
    assert completed(script, "topics", "d") == ["describe", "delete"]
    assert completed(script, "topics", "create", "orders", "--part") == ["--partitions"]
    assert completed(script, "dev", "--det") == ["--detach"]
    assert completed(script, "no-such-command", "--boot") == ["--bootstrap"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_path_is_in_every_script(offline: Shell, shell: str) -> None:
    script = offline("completion", shell).out
    for path in offline("completion", shell, "--json").json:
        assert path in script


def test_an_unknown_shell_is_refused(offline: Shell) -> None:
    answer = offline("completion", "tcsh")
    assert (answer.code, "bash, zsh, fish" in answer.err) == (2, True)
