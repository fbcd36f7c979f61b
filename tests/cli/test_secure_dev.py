"""Tests of `kpybroker dev --secure`: the printed user may do everything, and no other client may do anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kpybroker.config import parse_properties
from kpybroker.config.login import login_of
from tests.cli.shell import Shell, kpybroker_process, ready

pytestmark = pytest.mark.slow


@contextmanager
def secure(*arguments: str) -> Iterator[dict[str, str]]:
    """The parsed ready line, with the lines after it under `said`, and at the end with the log under `log`."""
    process = kpybroker_process("dev", "--secure", "--port", "0", *arguments)
    facts = ready(process)
    assert process.stdout is not None
    facts["said"] = process.stdout.readline()
    try:
        yield facts
    finally:
        process.terminate()
        _, facts["log"] = process.communicate()


def test_the_printed_user_may_do_everything_and_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    with secure("--data-dir", str(data)) as facts:
        shell, client = Shell(facts["bootstrap"], monkeypatch), facts["client"]
        assert {path.stat().st_mode & 0o777 for path in Path(client).parent.iterdir()} == {0o600}
        assert shell("--command-config", client, "topics", "create", "t").code == 0
        assert shell("--timeout", "5", "topics", "list").code == 1
        password = login_of(parse_properties(Path(client).read_text(), client))
        assert password is not None
    assert f"user dev, password {password.password}" in facts["said"]
    assert password.password not in facts["log"]
    with secure("--data-dir", str(data)) as facts:
        assert Path(client) == Path(facts["client"]), "the same user, and the same file"
        told = Shell(facts["bootstrap"], monkeypatch)("--command-config", client, "topics", "list", "--json")
        assert [each["topic"] for each in json.loads(told.out)] == ["t"]


def test_an_ephemeral_broker_leaves_nothing_behind() -> None:
    with secure("--ephemeral") as facts:
        assert Path(facts["client"]).exists()
    assert not Path(facts["data"]).exists()
    assert not Path(facts["client"]).parent.exists()


def test_a_directory_without_a_user_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    plain = kpybroker_process("dev", "--port", "0", "--data-dir", str(data))
    ready(plain)
    plain.terminate()
    plain.communicate()
    refused = kpybroker_process("dev", "--secure", "--port", "0", "--data-dir", str(data))
    _, said = refused.communicate()
    assert refused.returncode == 2
    assert "was created without --secure, so it has no user" in said
    assert not (tmp_path / "data.secure").exists()


def test_several_brokers_are_refused(tmp_path: Path) -> None:
    refused = kpybroker_process("dev", "--secure", "--brokers", "3", "--data-dir", str(tmp_path / "data"))
    _, said = refused.communicate()
    assert refused.returncode == 2
    assert "--secure is for one broker" in said
