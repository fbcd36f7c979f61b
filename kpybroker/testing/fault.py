"""Faults that tests inject into requests of clients, at one broker or at several."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TypedDict

from kpybroker.testing.node import ClusterNode

HIT_TIMEOUT_S = 10.0
LOOK_EVERY_S = 0.01
KINDS = (
    "error", "delay_s", "throttle_s", "no_reply", "disconnect", "lost_reply", "truncated_reply", "corrupt_reply",
)  # fmt: skip
DISK_KINDS = ("full", "broken", "slow_s", "stuck")
_TIMES = {"delay_s": "delay", "throttle_s": "throttle"}


class FaultArguments(TypedDict, total=False):
    """The arguments of `Cluster.fault`, which explains them."""

    error: str
    delay_s: float
    throttle_s: float
    no_reply: bool
    disconnect: bool
    lost_reply: bool
    truncated_reply: bool
    corrupt_reply: bool
    topic: str
    partition: int
    group: str
    client_id: str
    skip: int
    times: int
    probability: float


class Fault:
    """An injected fault. After its end, it still has its count."""

    def __init__(self, nodes: Sequence[ClusterNode], of: str, command: Mapping[str, object], where: str = "") -> None:
        """Inject the fault at these nodes. `of`: what it affects; `where`: the prefix of the commands about it.

        Raises ValueError for a fault that can never match.
        """
        self._of = of
        self._where = where
        self._numbers: dict[ClusterNode, int] = {}
        self._incarnations: dict[ClusterNode, object] = {}
        self._hits = 0
        with contextlib.ExitStack() as undo:
            undo.callback(self.heal)
            for node in nodes:
                self._numbers[node] = node.command(command)["fault"]
                self._incarnations[node] = node.incarnation
            undo.pop_all()

    def __repr__(self) -> str:
        return f"<fault of {self._of}, {self._hits} hits so far>"

    @property
    def hits(self) -> int:
        """The number of requests that the fault has affected, except at brokers that have ended since."""
        lasting = ((node, number) for node, number in self._numbers.items() if self._lasts_at(node))
        return self._hits + sum(self._ask("hits", node, number) for node, number in lasting)

    def wait_hit(self, count: int = 1, timeout_s: float = HIT_TIMEOUT_S) -> None:
        """Wait until the fault has affected `count` requests. Raises AssertionError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (hits := self.hits) < count:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"the fault of {self._of} was hit {hits} times within {timeout_s:g} s, not {count}"
                )
            time.sleep(LOOK_EVERY_S)

    def heal(self) -> None:
        """Remove the fault. At brokers that have ended, it no longer exists."""
        numbers, self._numbers = self._numbers, {}
        for node, number in numbers.items():
            if self._lasts_at(node):
                self._hits += self._ask("heal", node, number)

    def _ask(self, do: str, node: ClusterNode, number: int) -> int:
        return int(node.command({"do": self._where + do, "fault": number})["hits"])

    def _lasts_at(self, node: ClusterNode) -> bool:
        """Whether the run of the node that has the fault still lasts."""
        return node.is_running and node.incarnation == self._incarnations.get(node)


def request_fault(api: str, what: FaultArguments) -> dict[str, object]:
    """The command for a fault in requests. Raises ValueError unless there is exactly one effect."""
    fields: dict[str, object] = {name: value for name, value in what.items() if value is not None}
    kinds = [kind for kind in KINDS if fields.get(kind) not in (None, False)]
    if len(kinds) != 1:
        raise ValueError(
            f"give exactly one of {', '.join(KINDS[:-1])} and {KINDS[-1]}, not {' and '.join(kinds) or 'none'}"
        )
    (kind,) = kinds
    command: dict[str, object] = {"do": "fault", "api": api, "kind": kind}
    for name, value in fields.items():
        if name in _TIMES:
            command |= {"kind": _TIMES[name], "delay_ms": round(float(str(value)) * 1000)}
        elif name == "probability":
            command[name] = float(what["probability"])
        elif name == "error" or name not in KINDS:
            command[name] = value
    return command


class DiskFaultArguments(TypedDict, total=False):
    """The arguments of `Cluster.disk_fault`, which explains them."""

    full: bool
    broken: bool
    slow_s: float
    stuck: bool
    topic: str
    partition: int


def disk_fault(what: DiskFaultArguments) -> dict[str, object]:
    """The command for a fault of a disk. Raises ValueError unless there is exactly one effect."""
    kinds = [kind for kind in DISK_KINDS if what.get(kind) not in (None, False)]
    if len(kinds) != 1:
        told = " and ".join(kinds) or "none"
        raise ValueError(f"give exactly one of {', '.join(DISK_KINDS[:-1])} and {DISK_KINDS[-1]}, not {told}")
    command: dict[str, object] = {"do": "disk fault", "kind": kinds[0].removesuffix("_s")}
    if "slow_s" in what:
        command["delay_ms"] = round(what["slow_s"] * 1000)
    return command | {name: value for name, value in what.items() if name not in DISK_KINDS and value is not None}
