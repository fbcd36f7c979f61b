"""Common disturbances of a cluster, made of single faults."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from kpybroker.similar_names import meant

DISTURBED = ("Produce", "Fetch", "Metadata", "FindCoordinator", "OffsetCommit", "OffsetFetch", "Heartbeat")
"""The requests that a flaky network disturbs."""
LOST, LATE, LATE_S = 0.05, 0.2, 0.05
"""The shares of these requests whose connection breaks, and whose response is late, and how late it is."""
SLOW_S = 0.05
RESTART_PAUSE_S = 0.5


class Disturbed(Protocol):
    """The part of a Cluster that the weather disturbs."""

    @property
    def nodes(self) -> list[int]: ...

    @property
    def running_nodes(self) -> list[int]: ...

    def restart(self, node: int | None = None) -> None: ...

    @property
    def fault(self) -> Callable[..., contextlib.AbstractContextManager[Any]]: ...

    @property
    def disk_fault(self) -> Callable[..., contextlib.AbstractContextManager[Any]]: ...


@contextlib.contextmanager
def flaky_network(cluster: Disturbed) -> Iterator[None]:
    """Of the requests of clients, some are late, some are lost, and some get no response although they are
    processed."""
    with contextlib.ExitStack() as stack:
        for api in DISTURBED:
            stack.enter_context(cluster.fault(api, disconnect=True, probability=LOST / 2))
            stack.enter_context(cluster.fault(api, lost_reply=True, probability=LOST / 2))
            stack.enter_context(cluster.fault(api, delay_s=LATE_S, probability=LATE))
        yield


@contextlib.contextmanager
def slow_disk(cluster: Disturbed) -> Iterator[None]:
    """Each write and each sync takes 50 ms longer."""
    with cluster.disk_fault(slow_s=SLOW_S):
        yield


@contextlib.contextmanager
def rolling_restart(cluster: Disturbed) -> Iterator[None]:
    """The brokers that run are restarted one after another. The block ends when all have been."""

    def restart() -> None:
        for node in cluster.nodes:
            if node in cluster.running_nodes:
                cluster.restart(node)
                time.sleep(RESTART_PAUSE_S)

    with ThreadPoolExecutor(1) as thread:
        restarting = thread.submit(restart)
        yield
        restarting.result()


WEATHER: Mapping[str, Callable[[Disturbed], contextlib.AbstractContextManager[None]]] = {
    "flaky_network": flaky_network,
    "slow_disk": slow_disk,
    "rolling_restart": rolling_restart,
}


def weather(cluster: Disturbed, name: str) -> contextlib.AbstractContextManager[None]:
    """The disturbance of this name. Raises ValueError, with the most similar name."""
    if not isinstance(name, str) or name not in WEATHER:
        raise ValueError(f"there is no weather {name!r}: there are {', '.join(WEATHER)}{meant(name, WEATHER)}")
    return WEATHER[name](cluster)
