"""Tests of the commands `kpybroker storage check` and `repair`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kpybroker.storage.log.log import Log
from tests.cli.shell import Answer, Shell
from tests.storage.old_messages import message
from tests.storage.workshop import WORLD, History

META = "node.id=1\ndirectory.id=_SxAiFjWQ3qCp-YBk6xYKQ\nversion=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\n"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell without prompts: no command asks for confirmation."""
    return Shell("127.0.0.1:1", monkeypatch)


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A directory with one partition that was stopped cleanly."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text(META)
    (tmp_path / "data" / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    history = History.of(tmp_path / "data", 5)
    for _ in range(80):
        history.append()
    history.flush()
    history.log.close()
    return history


def spoiled(history: History) -> Path:
    """The directory with a damaged batch in the second segment."""
    log = sorted(Path(history.log.directory).glob("*.log"))[1]
    content = bytearray(log.read_bytes())
    content[65] ^= 1
    log.write_bytes(content)
    return log


def storage(shell: Shell, command: str, history: History, *options: str) -> Answer:
    return shell("storage", command, str(Path(history.log.directory).parent), *options)


def test_nothing_is_wrong(shell: Shell, history: History, tmp_path: Path) -> None:
    said = f"{tmp_path}/data: no problems found\n"
    assert storage(shell, "check", history) == (0, said, "")
    assert storage(shell, "repair", history, "--yes") == (0, said, "")
    assert storage(shell, "check", history, "--json").json == []


def test_each_finding_is_one_row_and_sets_the_exit_code(shell: Shell, history: History) -> None:
    log = spoiled(history)
    answer = storage(shell, "check", history)
    assert answer.code == 1
    head, _, row = answer.out.splitlines()
    assert head.split() == ["FILE", "POSITION", "OFFSET", "FINDING"]
    place = f"{log.parent.name}/{log.name}"
    assert row.split()[:3] == [place, "0", str(int(log.stem))]
    (found,) = storage(shell, "check", history, "--json").json
    assert found["path"] == str(log)
    assert json.dumps(found)
    assert storage(shell, "check", history, "--topic", "other").code == 0


def test_a_repair_shows_its_plan_and_runs_only_with_yes(shell: Shell, history: History, tmp_path: Path) -> None:
    log = spoiled(history)
    before = log.read_bytes()
    for options in ((), ("--dry-run",), ("--dry-run", "--yes")):
        dry = storage(shell, "repair", history, *options)
        assert dry.code == 1
        assert f"set a copy of {log} aside" in dry.out
        assert "nothing was changed; --yes repairs it" in dry.err
    assert log.read_bytes() == before
    assert not (tmp_path / "data.set-aside").exists()
    assert storage(shell, "repair", history, "--yes").code == 0
    [aside] = (tmp_path / "data.set-aside").rglob("*.log")
    assert aside.read_bytes() == before
    assert storage(shell, "check", history).code == 0
    point = (tmp_path / "data" / "recovery-point-offset-checkpoint").read_text().split()
    assert point[-1] == str(history.log.end)


def test_messages_of_an_old_format_are_not_repaired(shell: Shell, history: History, tmp_path: Path) -> None:
    """Not even a log that is also damaged; another log is."""
    file = spoiled(history)
    with file.open("ab") as log:
        log.write(message(0, 1))
    other = tmp_path / "data" / "other-0"
    other.mkdir()
    (other / f"{0:020}.log").write_bytes(b"damaged")
    before = {each.name: each.read_bytes() for each in file.parent.iterdir()}
    answer = storage(shell, "check", history)
    assert answer.code == 1
    assert "messages of format 1, which only Apache Kafka reads" in answer.out
    answer = storage(shell, "repair", history, "--yes")
    assert answer.code == 1
    assert f"by hand: {file.parent}: {file} has messages of an old format" in answer.err
    assert str(file.parent) not in answer.out
    assert {each.name: each.read_bytes() for each in file.parent.iterdir()} == before
    assert (other / f"{0:020}.log").read_bytes() == b""
    assert not (tmp_path / "data.set-aside" / file.parent.name).exists()


@pytest.mark.parametrize(("number", "said"), [(1, "is empty, but should contain the batches"), (-1, "was on the disk")])
def test_emptied_segments_are_found_and_repaired(
    shell: Shell, history: History, tmp_path: Path, number: int, said: str
) -> None:
    log = sorted(Path(history.log.directory).glob("*.log"))[number]
    marks = tmp_path / "data" / "recovery-point-offset-checkpoint"
    topic, _, index = log.parent.name.rpartition("-")
    marks.write_text(f"0\n1\n{topic} {index} {history.log.end}\n")
    log.write_bytes(b"")
    (found,) = storage(shell, "check", history, "--json").json
    assert (found["path"], found["offset"]) == (str(log), int(log.stem))
    assert said in found["text"]
    planned = storage(shell, "repair", history).out
    assert (f"set {log} aside" if number > 0 else f"to {int(log.stem)}, where its batches end") in planned
    assert storage(shell, "repair", history, "--yes").code == 0
    assert storage(shell, "check", history).code == 0
    end = history.log.end if number > 0 else int(log.stem)
    assert marks.read_text().split()[-1] == str(end)
    directory = history.log.directory
    again = Log.open(WORLD, directory, "t", 0, history.log.settings, clean=True, synced_end=end)
    assert again.end == end


def test_a_checkpoint_that_cannot_be_read_is_set_aside(shell: Shell, history: History, tmp_path: Path) -> None:
    marks = tmp_path / "data" / "log-start-offset-checkpoint"
    marks.write_text("0\n7\n")
    assert "log-start-offset-checkpoint" in storage(shell, "check", history).out
    assert storage(shell, "repair", history, "--yes").code == 0
    assert storage(shell, "check", history).code == 0
    assert [path.read_text() for path in (tmp_path / "data.set-aside").rglob("log-start*")] == ["0\n7\n"]


def test_manual_repairs_are_reported(shell: Shell, history: History, tmp_path: Path) -> None:
    (tmp_path / "data" / "meta.properties").write_text("version=1\n")
    answer = storage(shell, "repair", history, "--yes")
    assert answer.code == 1
    assert f"by hand: {tmp_path}/data/meta.properties: cannot be used" in answer.err


def test_a_directory_in_use_by_a_broker_is_refused(shell: Shell, history: History, tmp_path: Path) -> None:
    lock = WORLD.disk.lock(f"{tmp_path}/data/.lock")
    for command in ("check", "repair"):
        answer = storage(shell, command, history)
        assert (answer.code, answer.out) == (1, "")
        assert "is in use by a broker; stop it first" in answer.err
    WORLD.disk.close(lock)


def test_a_directory_that_is_not_a_brokers_is_refused(shell: Shell, tmp_path: Path) -> None:
    answer = shell("storage", "check", str(tmp_path))
    assert answer.code == 1
    assert "is not a broker's data directory" in answer.err
    assert list(tmp_path.iterdir()) == []
