"""Tests how a parent process reads the log of a child, and when it starts a child again."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kpybroker.cli import children
from kpybroker.cli.children import LOG_READ_BYTES, PAUSE_MAX_S, PAUSE_MIN_S, Child, ChildNode, KeptNode, pause_s
from kpybroker.cli.lifetime import read_settings, written
from kpybroker.errors import ConfigError
from kpybroker.storage.dirs.formatting import META_PROPERTIES


def run(code: str, hint: str = "") -> Child:
    """A child that has run this program."""

    async def child() -> Child:
        piped = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", f"import sys\n{code}", **piped)
        child = Child(ChildNode(7, {}, "/none", hint=hint), process)
        await child.ended
        return child

    return asyncio.run(child())


def test_lines_have_the_id_of_the_node_unless_they_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    child = run("sys.stderr.write('one\\n{\"two\": 2}\\n\\nthree')\nsys.exit(5)")
    assert capsys.readouterr().err == 'node 7 | one\n{"two": 2}\nnode 7 | \nnode 7 | three\n'
    assert child.death_report() == "node 7 ended with code 5: three"


def test_a_line_without_end_is_split(capsys: pytest.CaptureFixture[str]) -> None:
    """The parent keeps a part of it only."""
    size = 5 * LOG_READ_BYTES
    run(f"sys.stderr.write('x' * {size})")
    lines = capsys.readouterr().err.splitlines()
    assert sum(len(line.removeprefix("node 7 | ")) for line in lines) == size
    assert len(lines) > 1
    assert max(map(len, lines)) < 3 * LOG_READ_BYTES


def test_the_words_of_the_ready_line() -> None:
    child = run("print('kpybroker ready bootstrap=h:1 data=/a http=no/b pid=3 http=h:2')")
    assert (child.fact("bootstrap"), child.fact("http"), child.fact("client")) == ("h:1", "h:2", "")
    assert child.death_report() == "node 7 has stopped"


@pytest.mark.parametrize(("code", "address"), [(0, "h:2"), (1, ""), (-9, "")])
def test_a_dead_node_has_no_address_until_it_is_started_again(code: int, address: str) -> None:
    """Unlike one that was asked to stop."""
    end = f"sys.exit({code})" if code >= 0 else "import os\nos.kill(os.getpid(), 9)"
    child = run(f"print('kpybroker ready http=h:2', flush=True)\n{end}")
    assert child.ended.result() == code
    assert KeptNode(ChildNode(7, {}, "/none"), child).http == address


def test_pauses_double_up_to_a_limit() -> None:
    pauses = [pause_s(deaths) for deaths in range(1, 2000)]
    assert pauses[0] == PAUSE_MIN_S
    assert pauses[-1] == PAUSE_MAX_S
    for one, other in itertools.pairwise(pauses):
        assert other == min(2 * one, PAUSE_MAX_S)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes a shell script the program of all children. Their pauses are short."""
    monkeypatch.setattr(children, "PAUSE_MIN_S", 0.01)
    (tmp_path / META_PROPERTIES).touch()

    def write(text: str) -> Path:
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{text}\n")
        path.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(path))
        return path

    return write


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the event loop's tasks, in seconds, which all end at once."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def at_once(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", at_once)
    return pauses


def kept(directory: Path, *, first: Path | None = None) -> str | None:
    """What `keep_running` returns for a child that runs the program."""

    async def keep() -> str | None:
        node = ChildNode(7, {}, str(directory))
        child = await children.start(node)
        if first is not None:
            first.chmod(0o600)
        return await KeptNode(node, child).keep_running()

    return asyncio.run(keep())


def codes(*ends: int) -> str:
    """A program that ends with one of these codes after the other."""
    cases = "\n".join(f"{number}) exit {code};;" for number, code in enumerate(ends, 1))
    return f"echo >> starts\ncase $(wc -l < starts) in\n{cases}\nesac"


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ((2, 2, 1, 2, 2, 1, 0), None),
        ((1, 2, 2, 2, 0), "node 7 ended with code 2: ; it did not start 3 times in a row"),
        ((1, 3, 0), "node 7 ended with code 3: "),
    ],
    ids=str,
)
def test_only_refusals_in_a_row_end_all(
    ends: Sequence[int], reason: str | None, program: Callable[[str], Path], tmp_path: Path
) -> None:
    program(codes(*ends))
    assert kept(tmp_path) == reason
    assert len((tmp_path / "starts").read_text()) == len(ends) - (reason is not None)


@pytest.mark.parametrize(("steady_s", "pauses"), [(0.0, [0.01, 0.01, 0.01]), (3600.0, [0.01, 0.02, 0.04])])
def test_pauses_begin_anew_when_a_child_has_run_for_long(
    steady_s: float,
    pauses: list[float],
    program: Callable[[str], Path],
    tmp_path: Path,
    slept: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(children, "STEADY_S", steady_s)
    program(codes(1, 1, 1, 0))
    assert kept(tmp_path) is None
    assert [float(text) for text in re.findall("started again in ([0-9.]+) s", capsys.readouterr().err)] == pauses
    assert slept == pauses


def test_a_process_that_cannot_be_started_is_tried_again(
    program: Callable[[str], Path], tmp_path: Path, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(codes(1, 0))

    class Log(io.StringIO):
        """Makes the program executable again after the second failure."""

        def write(self, text: str) -> int:
            written = super().write(text)
            if self.getvalue().count("cannot start node 7: ") == 2:
                path.chmod(0o700)
            return written

    monkeypatch.setattr(sys, "stderr", log := Log())
    assert kept(tmp_path, first=path) is None
    assert log.getvalue().count("it is tried again") == 2
    assert slept == [0.01, 0.02, 0.04]


def test_a_child_that_hangs_is_killed_and_the_others_hand_over(
    program: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that hangs does not take the whole time that all have to hand over."""
    monkeypatch.setattr(children, "HAND_OVER_PATIENCE_S", 3.0)
    monkeypatch.setattr(children, "STOP_PATIENCE_S", 0.2)
    program(
        "case $* in\n"
        "*node.id=3*) head -c 10 > /dev/null; echo ready; read line; timeout 0.2 cat; "
        "echo $line $? >&2; echo left; cat;;\n"
        "*) echo ready; exec sleep 3600;;\n"
        "esac"
    )

    async def stop() -> list[int]:
        nodes = [ChildNode(node_id, {}, str(tmp_path)) for node_id in (1, 2, 3)]
        every = [KeptNode(node, await children.start(node)) for node in nodes]
        for each in every:
            await each.child.ready.wait()
        await children.stop_all(every)
        return [each.child.ended.result() for each in every]

    assert asyncio.run(stop()) == [-9, -9, 0]
    log = capsys.readouterr().err
    assert "node 3 | hand over 124\n" in log, "its standard input was open until it had handed over"
    assert log.count("did not stop within") == 2


def test_a_child_gets_its_settings_whole() -> None:
    """Whatever they contain; the commands that follow stay unread."""
    settings = {"a": "x\ny = \\ \u20ac \udcff", "b": "z" * 30_000}
    reading, writing = os.pipe()
    os.write(writing, written(settings) + b"hand over\n")
    stdin = os.dup(0)
    try:
        os.dup2(reading, 0)
        assert read_settings() == settings
        assert os.read(0, 100) == b"hand over\n"
        os.close(writing)
        with pytest.raises(ConfigError, match="the parent process has ended"):
            read_settings()
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
        os.close(reading)


def test_the_way_out_of_a_port_in_use() -> None:
    """Only the child that cannot listen gets it."""
    for code, line, hint in ((2, "cannot listen on h:1", "; move it"), (2, "no", ""), (1, "cannot listen on h:1", "")):
        child = run(f"sys.stderr.write({line!r})\nsys.exit({code})", hint="move it")
        assert child.death_report() == f"node 7 ended with code {code}: {line}{hint}"
