"""The pytest plugin: the fixtures `kpybroker`, `kpybroker_cluster` and `kpybroker_secure`.

The report of a failed test shows the standard error of the brokers during the test, and how they ended. Tests without
brokers import only this file.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kpybroker.testing.process import BrokerProcess

SECTION = "kpybroker"
_sizes = pytest.StashKey[dict[str, dict[str, int]]]()
"""The sizes of each broker's output when the test started, by bootstrap address."""


@pytest.fixture(scope="session")
def kpybroker() -> Iterator[BrokerProcess]:
    """A broker for the session: `.bootstrap` for any client, `.topic(prefix)` for a unique topic name.

    It starts when a test first requests it, on a free port with a temporary directory, and ends with the session. With
    pytest-xdist, every worker has its own broker.
    """
    from kpybroker.testing.process import BrokerProcess

    with BrokerProcess.started() as broker:
        yield broker


@pytest.fixture(scope="session")
def kpybroker_cluster() -> Iterator[BrokerProcess]:
    """A cluster of three brokers for the session. Topics have three replicas, and acks=all needs two of them.

    Otherwise like `kpybroker`; `.bootstrap` names all three brokers.
    """
    from kpybroker.testing.process import BrokerProcess

    with BrokerProcess.started(brokers=3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kpybroker_secure() -> Iterator[BrokerProcess]:
    """A broker for the session with TLS, a login and ACLs; `.client` has the settings for each client library.

    Otherwise like `kpybroker`. Needs the package cryptography (`pip install 'kpybroker[tls]'`).
    """
    from kpybroker.testing.process import BrokerProcess

    with BrokerProcess.started(secure=True) as broker:
        yield broker


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Store the size of each broker's output before this test."""
    item.stash[_sizes] = {broker.bootstrap: broker.output.sizes() for broker in _running()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the output of the brokers to the report of a failed test."""
    report = yield
    if report.failed:
        sizes = item.stash.get(_sizes, {})
        for broker in _running():
            texts = [broker.output.since(sizes.get(broker.bootstrap, {}))]
            how = broker.ended()
            if how is not None:
                texts.append(f"the broker at {broker.bootstrap} {how}")
            if any(texts):
                report.sections.append((SECTION, "\n".join(filter(None, texts))))
    return report


def _running() -> Iterable[BrokerProcess]:
    """The running brokers of this process."""
    process = sys.modules.get("kpybroker.testing.process")
    return () if process is None else tuple(process.BrokerProcess.running)
