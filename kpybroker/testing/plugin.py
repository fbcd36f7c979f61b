"""The pytest plugin: the fixtures `kpybroker`, `kpybroker_cluster`, `kpybroker_secure` and `kpybroker_fresh`.

The report of a failed test shows the standard error of the brokers during the test, how they ended, and the last
requests of clients. A test session without brokers imports only this file.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from kpybroker.testing import Broker, Cluster, Kafka

SECTION = "kpybroker"
REQUESTS_SECTION = "last requests to kpybroker"
REQUESTS_SHOWN = 30
MARKER = "kpybroker"
FRESH = "kpybroker_fresh"
OWN = ("kpybroker", "kpybroker_cluster", "kpybroker_secure", FRESH)
"""The fixtures with brokers of their own."""
SETTINGS = "kpybroker_settings"
IN_THREAD = "kpybroker_in_thread"
BOOTSTRAP = "--kpybroker-bootstrap"
_sizes = pytest.StashKey[dict[str, dict[str, int]]]()
"""The sizes of each broker's output when the test started, by bootstrap address."""
_began = pytest.StashKey[float]()
"""When the test started, in seconds since the epoch."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--kpybroker-bootstrap` and the ini options `kpybroker_settings` and `kpybroker_in_thread`."""
    group = parser.getgroup("kpybroker", "a real Kafka broker")
    group.addoption(
        BOOTSTRAP,
        metavar="HOST:PORT",
        help="Run the tests against this Kafka cluster; the fixtures start no brokers.",
    )
    parser.addini(
        SETTINGS,
        "Settings of every broker that a fixture starts, one name=value per line.",
        type="linelist",
        default=[],
    )
    parser.addini(
        IN_THREAD,
        "Run the brokers that the fixtures start in threads of the test process, where they start faster.",
        type="bool",
        default=False,
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(settings={{}}, brokers=1, secure=False, in_thread=False, api_versions={{}}): what the brokers of "
        f"{FRESH} are like in this test.",
    )


@pytest.fixture(scope="session")
def kpybroker(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    """A broker for the session: `.bootstrap` for any client, `.topic(prefix)` for a unique topic name.

    It starts when a test first requests it, on a free port with a temporary directory, and stops at the end of the
    session. Under pytest-xdist, every worker has its own broker. With `--kpybroker-bootstrap`, the fixture is that
    cluster.
    """
    external = request.config.getoption(BOOTSTRAP)
    if external is not None:
        from kpybroker.testing import Kafka

        yield Kafka(external)
        return
    from kpybroker.testing import Broker

    with Broker(_settings(request.config), in_thread=_in_thread(request)) as broker:
        yield broker


@pytest.fixture(scope="session")
def kpybroker_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of three brokers for the session: topics have three replicas, and acks=all needs two.

    Otherwise like `kpybroker`; `.bootstrap` contains all three brokers.
    """
    _skip_if_external(request)
    from kpybroker.testing import Cluster

    with Cluster(3, _settings(request.config), in_thread=_in_thread(request)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kpybroker_secure(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker for the session with TLS, a login and ACLs; `.client` has the settings for each client library.

    Otherwise like `kpybroker`. Needs the package cryptography (`pip install 'kpybroker[tls]'`).
    """
    _skip_if_external(request)
    from kpybroker.testing import Broker

    with Broker(_settings(request.config), secure=True, in_thread=_in_thread(request)) as broker:
        yield broker


@pytest.fixture
def kpybroker_fresh(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A broker for one test, which may stop and kill it: a Broker, or a Cluster if the test's marker says so.

    `@pytest.mark.kpybroker(settings={"num.partitions": 3}, brokers=3, secure=False, in_thread=False,
    api_versions={"Fetch": (4, 11)})` sets its properties, with the arguments of Cluster.
    """
    _skip_if_external(request)
    from kpybroker.testing import Broker, Cluster

    wanted = _marked(request.node)
    settings = {**_settings(request.config), **wanted.settings}
    like: dict[str, Any] = {"secure": wanted.secure, "api_versions": wanted.api_versions}
    like["in_thread"] = _in_thread(request) if wanted.in_thread is None else wanted.in_thread
    made = Broker(settings, **like) if wanted.brokers == 1 else Cluster(wanted.brokers, settings, **like)
    with made as cluster:
        yield cluster


class _Marked(NamedTuple):
    """The arguments of the markers of a test."""

    settings: Mapping[str, object] = {}
    brokers: int = 1
    secure: bool = False
    in_thread: bool | None = None
    api_versions: Mapping[str, tuple[int, int] | None] | None = None


def _marked(item: pytest.Item) -> _Marked:
    """The arguments of the test's markers, with all of their settings; the marker nearest to the test takes precedence.
    Raises pytest.UsageError."""
    arguments: dict[str, Any] = {}
    settings: dict[str, object] = {}
    for mark in reversed(list(item.iter_markers(MARKER))):
        if mark.args:
            raise pytest.UsageError(f"{item.nodeid}: name the arguments of @pytest.mark.{MARKER}, as in brokers=3")
        for name in mark.kwargs:
            if name not in _Marked._fields:
                from kpybroker.similar_names import meant

                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.{MARKER} takes {', '.join(_Marked._fields)}, but not "
                    f"{name}{meant(name, _Marked._fields)}"
                )
        given = mark.kwargs.get("settings", {})
        if not isinstance(given, Mapping):
            raise pytest.UsageError(
                f"{item.nodeid}: the settings of @pytest.mark.{MARKER} are a mapping, such as "
                f"{{'num.partitions': 3}}, not {type(given).__name__}"
            )
        settings |= given
        arguments |= mark.kwargs
    return _Marked(**{**arguments, "settings": settings})


def _settings(config: pytest.Config) -> dict[str, object]:
    """The settings in pytest's ini file. Raises pytest.UsageError."""
    settings: dict[str, object] = {}
    for line in config.getini(SETTINGS):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"{SETTINGS}: cannot read {line!r}; write name=value, such as num.partitions=3")
        settings[name.strip()] = value.strip()
    return settings


def _in_thread(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getini(IN_THREAD))


def _skip_if_external(request: pytest.FixtureRequest) -> None:
    if request.config.getoption(BOOTSTRAP) is not None:
        pytest.skip(f"{request.fixturename} starts brokers of its own, which {BOOTSTRAP} rules out")


def _check_markers(item: pytest.Item) -> None:
    """Fail a test whose marker is wrong or would have no effect. A marker of a class or a module may be for others of
    its tests, and a test with the fixture `request` may ask for the broker later."""
    try:
        _marked(item)
    except pytest.UsageError as error:
        pytest.fail(str(error), pytrace=False)
    is_its_own = any(mark.name == MARKER for mark in item.own_markers)
    has_request = isinstance(item, pytest.Function) and "request" in inspect.signature(item.function).parameters
    if is_its_own and not has_request and FRESH not in getattr(item, "fixturenames", ()):
        pytest.fail(f"{item.nodeid}: @pytest.mark.{MARKER} needs the fixture {FRESH}", pytrace=False)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the process of a broker before the first test requests it, because its imports take most of the start."""
    config = session.config
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    is_needed = not used.isdisjoint(OWN) and config.getoption(BOOTSTRAP) is None and not config.getini(IN_THREAD)
    if not is_needed or config.getoption("collectonly"):
        return
    from kpybroker.testing.spares import SPARES

    SPARES.keep(3 if "kpybroker_cluster" in used else 1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check the markers, and record how much each broker has written before this test."""
    _check_markers(item)
    item.stash[_sizes] = {cluster.bootstrap: cluster.output.sizes() for cluster in _running()}
    item.stash[_began] = time.time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the output of the brokers and the last requests of clients to the report of a failed test."""
    report = yield
    if report.failed:
        sizes = item.stash.get(_sizes, {})
        for cluster in _running():
            texts = [cluster.output.since(sizes.get(cluster.bootstrap, {}))]
            texts += [f"{how} (of {cluster.bootstrap})" for how in (*cluster.ended(), *cluster.paused())]
            if any(texts):
                report.sections.append((SECTION, "\n".join(filter(None, texts))))
            requests = _requests(cluster, item.stash.get(_began, 0.0))
            if requests:
                report.sections.append((f"{REQUESTS_SECTION} at {cluster.bootstrap}", requests))
    return report


def _requests(cluster: Cluster, since_s: float) -> str:
    """The last requests since a time, as a table; empty if there are none."""
    from kpybroker.client.recorded import table_of

    try:
        found = [request for request in cluster.requests if request.at_us >= since_s * 1_000_000]
    except RuntimeError as error:  # the broker has just ended, or hangs
        return str(error)
    left_out = len(found) - REQUESTS_SHOWN
    more = f"\n({left_out} earlier ones are left out)" if left_out > 0 else ""
    return table_of(found[-REQUESTS_SHOWN:]) + more if found else ""


def _running() -> Iterable[Cluster]:
    """The running clusters of this process."""
    module = sys.modules.get("kpybroker.testing.cluster")
    return () if module is None else tuple(module.Cluster.running)
