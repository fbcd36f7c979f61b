"""One broker for all tests of commands; each test uses topics of its own."""

from __future__ import annotations

import uuid

import pytest

from kpybroker.testing import Broker
from tests.cli.shell import Shell


@pytest.fixture
def shell(kpybroker: Broker, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """`shell("topics", "list")` against the session's broker."""
    return Shell(kpybroker.bootstrap, monkeypatch)


@pytest.fixture
def topic(kpybroker: Broker) -> str:
    """A topic name that only this test uses."""
    return kpybroker.topic("cli")


@pytest.fixture
def group() -> str:
    """A group name that only this test uses."""
    return f"group-{uuid.uuid4().hex[:8]}"
