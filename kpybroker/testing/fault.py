"""Faults that tests inject into requests of clients, at one broker or at several."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TypedDict

from kpybroker.similar_names import meant
from kpybroker.testing.arguments import whole_number
from kpybroker.testing.node import ClusterNode, Turn
from kpybroker.testing.waiting import becomes_true

HIT_TIMEOUT_S = 10.0
KINDS = (
    "error", "delay_s", "throttle_s", "no_reply", "disconnect", "lost_reply", "truncated_reply", "corrupt_reply",
)  # fmt: skip
DISK_KINDS = ("full", "broken", "slow_s", "stuck")
EFFECTS = {*KINDS, *DISK_KINDS} - {"error", "delay_s", "throttle_s", "slow_s"}
"""The effects that are either there or not."""
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
    """An injected fault. After its end, it still has its count.

    A broker that is started again within the block gets the fault again. From a broker that is paused at the end of the
    block, the fault is removed when the broker continues.
    """

    def __init__(
        self,
        nodes: Sequence[ClusterNode],
        of: str,
        command: Mapping[str, object],
        where: str,
        turn: Turn,
    ) -> None:
        """Inject the fault at these nodes. `of`: what it affects; `where`: the prefix of the commands about it.

        Raises ValueError for a fault that can never match.
        """
        self._turn = turn
        self._of = of
        self._where = where
        self._nodes = nodes
        self._command = command
        self._numbers: dict[ClusterNode, int] = {}
        self._incarnations: dict[ClusterNode, object] = {}
        self._hits: dict[ClusterNode, int] = {}
        """The hits of earlier runs of each node."""
        self._last: dict[ClusterNode, int] = {}
        """The hits of the current run of each node when it was last asked."""
        self._is_over = False
        with contextlib.ExitStack() as undo:
            undo.callback(self.heal)
            for node in nodes:
                if len(nodes) == 1 or node.takes_commands or node.is_paused:  # others get it after their start
                    self._inject(node, command)
            if not self._numbers:
                raise RuntimeError("no broker runs, so none can have a fault; call start() first")
            undo.pop_all()

    def _inject(self, node: ClusterNode, command: Mapping[str, object]) -> None:
        self._numbers[node] = node.command(command)["fault"]
        self._incarnations[node] = node.incarnation

    def __repr__(self) -> str:
        return f"<fault of {self._of}, {self._known_hits} hits so far>"

    @property
    def hits(self) -> int:
        """The number of requests that the fault has affected; at a broker that ended by itself or is paused, up to
        when it was last asked."""
        self.count()
        return self._known_hits

    @property
    def _known_hits(self) -> int:
        return sum(self._hits.values()) + sum(self._last.values())

    @property
    def is_open(self) -> bool:
        """Whether the block lasts, or a paused broker still has the fault."""
        return not self._is_over or bool(self._numbers)

    def count(self, nodes: Sequence[ClusterNode] | None = None) -> None:
        """Ask these nodes, or all, for their hits."""
        with self._turn:
            for node in self._nodes if nodes is None else nodes:
                if self._takes_commands_at(node):
                    self._last[node] = self._ask("hits", node)

    def after_start(self, node: ClusterNode) -> None:
        """Inject the fault again at a node that has been started. Requests that it has affected there count towards
        `times`, and it skips none if it has affected one."""
        if node not in self._nodes:
            return
        self._hits[node] = self._hits.get(node, 0) + self._last.pop(node, 0)
        self._numbers.pop(node, None)
        if self._is_over:
            return
        command = dict(self._command)
        if self._hits[node]:
            command.pop("skip", None)
        if isinstance(times := command.get("times"), int):
            if times <= self._hits[node]:
                return
            command["times"] = times - self._hits[node]
        self._inject(node, command)

    def after_resume(self, node: ClusterNode) -> None:
        """Remove the fault from a node that was paused when the block ended."""
        if self._is_over:
            self._heal_at(node)

    def wait_hit(self, count: int = 1, timeout_s: float = HIT_TIMEOUT_S) -> None:
        """Wait until the fault has affected `count` requests. Raises AssertionError after `timeout_s`."""
        whole_number("count", count)
        if not becomes_true(lambda _: self.hits >= count, timeout_s):
            raise AssertionError(
                f"the fault of {self._of} was hit {self._known_hits} times within {timeout_s:g} s, not {count}"
            )

    def heal(self) -> None:
        """Remove the fault. At brokers that have ended, it no longer exists; a paused one loses it when it
        continues."""
        with self._turn:
            self._is_over = True
            for node in list(self._numbers):
                self._heal_at(node)

    def _heal_at(self, node: ClusterNode) -> None:
        if self._takes_commands_at(node):
            self._last[node] = self._ask("heal", node)
        if node.takes_commands or not node.is_running:
            self._numbers.pop(node, None)

    def _ask(self, do: str, node: ClusterNode) -> int:
        return int(node.command({"do": self._where + do, "fault": self._numbers[node]})["hits"])

    def _takes_commands_at(self, node: ClusterNode) -> bool:
        """Whether the run of the node that has the fault still lasts and takes commands."""
        return node in self._numbers and node.takes_commands and node.incarnation == self._incarnations.get(node)


class Faults:
    """The faults of a cluster that are open: they follow the starts, ends and pauses of its nodes."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._open: list[Fault] = []

    def begin(self, nodes: Sequence[ClusterNode], of: str, command: Mapping[str, object], where: str = "") -> Fault:
        """Inject a fault, and follow it until it is no longer open. The arguments are those of Fault, which also
        explains the errors."""
        with self._turn:
            fault = Fault(nodes, of, command, where, self._turn)
            self._open = [*self._still_open(), fault]
        return fault

    def before_end(self, nodes: Sequence[ClusterNode]) -> None:
        """Count the hits at these nodes, before they end or are paused."""
        for fault in self._still_open():
            fault.count(nodes)

    def after_start(self, node: ClusterNode) -> None:
        """Inject the faults at a node that has been started."""
        for fault in self._still_open():
            fault.after_start(node)

    def after_resume(self, node: ClusterNode) -> None:
        """Remove the faults whose block ended while the node was paused."""
        for fault in self._still_open():
            fault.after_resume(node)

    def _still_open(self) -> list[Fault]:
        return [each for each in self._open if each.is_open]


def request_fault(api: str, what: FaultArguments) -> dict[str, object]:
    """The command for a fault in requests. Raises ValueError unless there is exactly one effect, TypeError."""
    fields: dict[str, object] = _given("a fault", what, FaultArguments.__annotations__)
    kinds = [kind for kind in KINDS if fields.get(kind, False) is not False]
    if len(kinds) != 1:
        raise ValueError(
            f"give exactly one of {', '.join(KINDS[:-1])} and {KINDS[-1]}, not {' and '.join(kinds) or 'none'}"
        )
    (kind,) = kinds
    command: dict[str, object] = {"do": "fault", "api": api, "kind": kind}
    for name, value in fields.items():
        if name in _TIMES:
            command |= {"kind": _TIMES[name], "delay_ms": _milliseconds(name, value)}
        elif name == "probability":
            command[name] = float(what["probability"])
        elif name == "error" or name not in KINDS:
            command[name] = value
    return command


def _given(what_for: str, what: Mapping[str, object], known: Collection[str]) -> dict[str, object]:
    """The arguments that are not None. Raises ValueError for an unknown name, TypeError for a value that no command can
    have."""
    fields = {name: value for name, value in what.items() if value is not None}
    for name, value in fields.items():
        if name not in known:
            raise ValueError(f"{what_for} has no {name!r}{meant(name, known)}")
        if name in EFFECTS and not isinstance(value, bool):
            raise TypeError(f"{name}={value!r}: give True or False")
        if not isinstance(value, str | int | float):
            raise TypeError(f"{name}={value!r}: give text or a number, not {type(value).__name__}")
    return fields


def _milliseconds(name: str, seconds: object) -> int:
    """Raises TypeError unless it is a number, ValueError unless it is finite."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name}={seconds!r}: give a number of seconds, such as {name}=0.5")
    if not math.isfinite(seconds):
        raise ValueError(f"{name}={seconds}: give a finite number of seconds, such as {name}=0.5")
    return round(seconds * 1000)


class DiskFaultArguments(TypedDict, total=False):
    """The arguments of `Cluster.disk_fault`, which explains them."""

    full: bool
    broken: bool
    slow_s: float
    stuck: bool
    topic: str
    partition: int


def disk_fault(what: DiskFaultArguments) -> dict[str, object]:
    """The command for a fault of a disk. Raises ValueError unless there is exactly one effect, TypeError."""
    fields = _given("a disk fault", what, DiskFaultArguments.__annotations__)
    kinds = [kind for kind in DISK_KINDS if fields.get(kind, False) is not False]
    if len(kinds) != 1:
        told = " and ".join(kinds) or "none"
        raise ValueError(f"give exactly one of {', '.join(DISK_KINDS[:-1])} and {DISK_KINDS[-1]}, not {told}")
    command: dict[str, object] = {"do": "disk fault", "kind": kinds[0].removesuffix("_s")}
    if "slow_s" in fields:
        command["delay_ms"] = _milliseconds("slow_s", fields["slow_s"])
    return command | {name: value for name, value in fields.items() if name not in DISK_KINDS}
