"""The pytest plugin: the fixtures `kpybroker` and `kpybroker_cluster`.

The report of a failed test shows what the brokers wrote on standard error since the test began, and how they ended.
Tests that do not use brokers only import this file.
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
"""By bootstrap, what each broker had written when the test began."""


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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note how much each broker has written before this test."""
    item.stash[_sizes] = {broker.bootstrap: broker.output.sizes() for broker in _running()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the brokers have written since, where the test has failed."""
    report = yield
    if report.failed:
        sizes = item.stash.get(_sizes, {})
        for broker in _running():
            said = [broker.output.since(sizes.get(broker.bootstrap, {}))]
            how = broker.ended()
            if how is not None:
                said.append(f"the broker at {broker.bootstrap} {how}")
            if any(said):
                report.sections.append((SECTION, "\n".join(filter(None, said))))
    return report


def _running() -> Iterable[BrokerProcess]:
    """The brokers of this process; none where nothing has asked for one."""
    process = sys.modules.get("kpybroker.testing.process")
    return () if process is None else tuple(process.BrokerProcess.running)
