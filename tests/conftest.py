"""Fixtures of the fast tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.serving import Scenario, run_scenario

collect_ignore = (
    [
        "cli/test_descriptors.py",
        "cli/test_hangup.py",
        "cli/test_platforms.py",
        "cli/test_short_descriptors.py",
        "cli/test_windows.py",
        "world/test_event_loops.py",
        "world/test_posix.py",
    ]
    if sys.platform == "win32"
    else []
)
"""Tests of POSIX signals, limits and file calls, and the tests that simulate Windows."""

os.environ.setdefault("PYTEST_TIMEOUT", "300")
"""The time limit of a test in seconds, for pytest-timeout. Not in pyproject.toml, as other users may not have that
plugin."""

WithBroker = Callable[..., None]


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Child processes inherit ignored signals, and a shell makes background processes ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def with_broker(tmp_path: Path) -> WithBroker:
    """`with_broker(scenario, properties)`: runs `async def scenario(peer, node)` against a real broker of its own."""

    def run(scenario: Scenario, properties: Mapping[str, str] | None = None) -> None:
        run_scenario(tmp_path / "data", scenario, properties)

    return run
