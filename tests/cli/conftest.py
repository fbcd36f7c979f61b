"""Fixtures for the tests of commands: one broker for all tests, and separate topics and groups for each."""

from __future__ import annotations

import uuid

import pytest

from kpybroker.testing import Broker
from tests.cli.shell import Shell


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
