"""What the nodes of a test cluster have in common, whether they are processes or threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


class Turn:
    """A lock of the threads of one process. A child that was forked passes it, because it controls no nodes, and a
    thread that it does not have may hold the lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = os.getpid()

    def __enter__(self) -> None:
        if os.getpid() == self._owner:
            self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() == self._owner:
            self._lock.release()


class BrokerStartError(RuntimeError):
    """A broker did not start; the text contains the reason or the output."""


class ReadyFacts(NamedTuple):
    """What is known about a node that is ready."""

    bootstrap: str
    http: str | None
    """host:port of /metrics, /healthz and /readyz."""
    client: Path | None
    """The file with the settings of a client that logs in."""


class ClusterNode(Protocol):
    """A node that is started as often as needed, on the same port and data. NodeProcess and NodeThread explain the
    methods."""

    node_id: int

    @property
    def incarnation(self) -> object: ...

    @property
    def pid(self) -> int: ...

    @property
    def is_running(self) -> bool: ...

    @property
    def is_paused(self) -> bool: ...

    @property
    def takes_commands(self) -> bool: ...

    def ended(self) -> str | None: ...

    def start(self, clock_ahead_ms: int = 0) -> None: ...

    def wait_until_ready(self) -> ReadyFacts: ...

    def command(self, command: Mapping[str, object]) -> dict[str, Any]: ...

    def hand_over(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Follower(Protocol):
    """What lasts over the starts, ends and pauses of nodes: faults, recordings and cuts."""

    def before_end(self, nodes: Sequence[ClusterNode]) -> None:
        """Fetch what these nodes alone know, before they end or are paused."""

    def after_start(self, node: ClusterNode) -> None:
        """Go on at a node that has been started."""

    def after_resume(self, node: ClusterNode) -> None:
        """Tell a node what has ended while it was paused."""
