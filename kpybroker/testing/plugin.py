"""The pytest plugin: the fixtures `kpybroker` and `kpybroker_cluster`.

Whoever does not use them pays for this file and nothing more.
"""

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


@pytest.fixture(scope="session")
def kpybroker_cluster() -> Iterator[BrokerProcess]:
    """Three brokers for the session that are one cluster: topics have three replicas, acks=all waits for two.

    Like `kpybroker` in all else; `.bootstrap` names all three.
    """
    from kpybroker.testing.process import BrokerProcess

    with BrokerProcess.started(brokers=3) as cluster:
        yield cluster
