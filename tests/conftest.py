"""Fixtures of the fast tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.serving import Scenario, run_scenario

WithBroker = Callable[..., None]


@pytest.fixture
def with_broker(tmp_path: Path) -> WithBroker:
    """`with_broker(scenario, properties)`: runs `async def scenario(peer, node)` against a real broker of its own."""

    def run(scenario: Scenario, properties: Mapping[str, str] | None = None) -> None:
        run_scenario(tmp_path / "data", scenario, properties)

    return run
