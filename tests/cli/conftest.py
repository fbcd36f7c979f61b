"""Fixtures for the tests of commands: one broker for all tests, and separate topics and groups for each."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator

import pytest

from kpybroker.testing import Broker
from tests.cli.running import Start
from tests.cli.shell import Shell, kpybroker_process


@pytest.fixture
def shell(kpybroker: Broker, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell for the session's broker; for example `shell("topics", "list")`."""
    return Shell(kpybroker.bootstrap, monkeypatch)


@pytest.fixture
def topic(kpybroker: Broker) -> str:
    """A topic name that only this test uses."""
    return kpybroker.topic("cli")


@pytest.fixture
def group() -> str:
    """A group name that only this test uses."""
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the real program, and kills the processes that are still running at the end."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        started.append(kpybroker_process(*arguments, stdin=subprocess.PIPE))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()
