"""Tests that the metrics, settings and options in the runbook exist; compat_tests/test_runbook.py runs its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kpybroker.cli import arguments
from kpybroker.config.broker_keys import BROKER_KEYS
from kpybroker.server.metrics.gauges import ALL_NAMES
from kpybroker.stalls import CAUSES

TEXT = (Path(__file__).parent.parent / "docs" / "runbook.md").read_text()


def test_every_metric_exists() -> None:
    named = set(re.findall(r"\b(?:kafka|kpybroker)_[a-z_]+", TEXT))
    assert len(named) > 10
    assert named <= set(ALL_NAMES)
    for watched in ("underreplicatedpartitions", "underminisr", "offlinepartitions", "activecontroller", "stall"):
        assert any(watched in name for name in named), watched


def test_every_cause_of_a_stall_is_explained() -> None:
    for cause, meaning in CAUSES.items():
        assert f"| `{cause}` | {meaning} |" in TEXT


def test_every_setting_exists() -> None:
    named = set(re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", TEXT)) | set(re.findall(r"s[/|]\^([a-z.]+)=", TEXT))
    files = (".md", ".py", ".properties", ".ready", ".log", ".sh", ".pem", ".yaml")
    settings = {name for name in named if not name.endswith(files)}
    assert len(settings) > 5
    assert settings <= set(BROKER_KEYS)


def test_brokers_are_started_with_existing_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own parser checks the options, up to the point where the program would serve."""
    served = []
    monkeypatch.setattr("kpybroker.cli.serving.dev", lambda *given, **more: served.append(("dev", given)))
    monkeypatch.setattr("kpybroker.cli.serving.serve", lambda *given, **more: served.append(("serve", given)))
    starts = re.findall(r"^ *kpybroker ((?:dev|serve) .*?) *&$", TEXT, re.MULTILINE)
    for line in starts:
        words = shlex.split(re.sub(r"\$\w+", "1", line))
        arguments.run_serving(words)
    assert [kind for kind, _ in served] == ["dev", "serve", "serve", "serve"]
