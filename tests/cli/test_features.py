"""`kpybroker features`: levels that are set are shown, and refusals say what is supported."""

from __future__ import annotations

import pytest

from kpybroker.testing import Broker
from tests.cli.shell import Shell


@pytest.mark.slow
def test_levels_are_listed_and_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker({"unstable.feature.versions.enable": True}) as broker:
        shell = Shell(broker.bootstrap, monkeypatch)

        def share() -> dict[str, object]:
            return next(row for row in shell("features", "list", "--json").json if row["feature"] == "share.version")

        assert share() == {"feature": "share.version", "min": 0, "max": 2, "level": 1}
        assert shell("features", "set", "share.version=2").out == "share.version is 2\n"
        assert share()["level"] == 2
        refused = shell("features", "set", "share.version=1")
        assert (refused.code, "downgrade" in refused.err) == (1, True)
        assert shell("features", "set", "share.version=1", "--downgrade").code == 0
        assert share()["level"] == 1
        assert "share.version" in shell("features", "list").out


@pytest.mark.parametrize("text", ["share.version", "share.version=", "share.version=one", "share.version=99999999"])
def test_levels_are_numbers(shell: Shell, text: str) -> None:
    assert shell("features", "set", text).code == 2


def test_an_unsupported_level_is_refused(shell: Shell) -> None:
    told = shell("features", "set", "share.version=2")
    assert told.code == 1
    assert "0 to 1" in told.err
