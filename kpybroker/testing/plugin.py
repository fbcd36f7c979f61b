"""The pytest plugin: one fixture, `kpybroker`. Whoever does not use it pays for this file and nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kpybroker.testing.process import BrokerProcess


@pytest.fixture(scope="session")
def kpybroker() -> Iterator[BrokerProcess]:
    """A broker for the session: `.bootstrap` for any client, `.topic(prefix)` for a name nobody else uses.

    It starts when a test first asks for it, on a free port and in a temporary directory, and is gone with the session.
    Under pytest-xdist every worker has its own.
    """
    from kpybroker.testing.process import BrokerProcess

    with BrokerProcess.started() as broker:
        yield broker
