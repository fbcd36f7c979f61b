"""Brokers for tests, each in its own process: `Broker` is one broker, `Cluster` is several.

They listen on free ports of 127.0.0.1 and keep these ports and their data while they are stopped and started. The data
is in a temporary directory. A small process removes the directory once the test process and all brokers have ended,
even if they were killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Self, Unpack

from kpybroker.cli.local_cluster import BROKERS_MAX, DEV_DEFAULTS, LocalClusterOptions, Ports, plan
from kpybroker.errors import ConfigError
from kpybroker.testing.fault import Fault, FaultArguments
from kpybroker.testing.kafka import Kafka, as_setting
from kpybroker.testing.node_process import STOP_TIMEOUT_S, BrokerStartError, NodeProcess, ReadyFacts
from kpybroker.testing.output import BrokerOutput
from kpybroker.testing.snapshot import Snapshot, put_back, take
from kpybroker.world.processes import apart

PREFIX = "kpybroker-"
"""The prefix of the names of temporary directories."""
DATA_DIR_SETTINGS = ("log.dir", "log.dirs")
_REMOVE = "import shutil, sys; sys.stdin.buffer.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
"""The program that removes the directory when every process that holds the other end of its input has ended."""


class Cluster(Kafka):
    """Several brokers, which are also the voters. Topics have up to three replicas, and acks=all needs two.

    A context manager, also for `async with`. Without a `with` statement, call `start()` first and `close()` last.
    """

    running: ClassVar[set[Cluster]] = set()
    """The clusters of this process that have been started and not yet closed."""

    def __init__(self, brokers: int = 3, config: Mapping[str, object] | None = None, *, secure: bool = False) -> None:
        """`config`: settings of every broker, by Kafka's names. `secure`: TLS, a login and ACLs, as `kpybroker dev
        --secure` has them, only for one broker; `client` has the settings of clients.

        Raises TypeError and ValueError for invalid arguments.
        """
        super().__init__("")
        if not 1 <= brokers <= BROKERS_MAX:
            raise ValueError(f"brokers={brokers}: must be from 1 to {BROKERS_MAX}")
        if secure and brokers > 1:
            raise ValueError("secure=True is for one broker; for several, set TLS and logins in config")
        self._count = brokers
        self._settings = _checked(config)
        self._is_secure = secure
        self._directory: Path | None = None
        self._nodes: dict[int, NodeProcess] = {}
        self._ready: dict[int, ReadyFacts] = {}
        self._ports = Ports()
        self._is_closed = False
        self._alive: IO[bytes] | None = None
        self._remover: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker. Raises RuntimeError before the first start."""
        if not self._ready:
            raise RuntimeError(f"this {type(self).__name__} has not been started; use it in a `with` statement")
        return ",".join(self._ready[node].bootstrap for node in sorted(self._ready))

    @property
    def client_properties(self) -> Path | None:
        """The file with the settings of a client that logs in; None if the cluster has no logins."""
        return self._ready[1].client if 1 in self._ready else None

    @property
    def http(self) -> list[str]:
        """host:port of /metrics, /healthz and /readyz of each broker; [] unless `kpybroker.http.port` is set."""
        return [facts.http for _, facts in sorted(self._ready.items()) if facts.http is not None]

    @property
    def nodes(self) -> list[int]:
        """The ids of the brokers, from 1 on."""
        return list(range(1, self._count + 1))

    @property
    def log(self) -> str:
        """The brokers' output on standard error: warnings, and events of a cluster."""
        return self.output.since({}, sys.maxsize)

    @property
    def output(self) -> BrokerOutput:
        """The output of the brokers in parts. Raises RuntimeError before the first start."""
        if self._directory is None:
            raise RuntimeError(f"this {type(self).__name__} has not been started; use it in a `with` statement")
        return BrokerOutput(self._directory)

    def pid_of(self, node: int) -> int:
        """The process id of a broker. Raises RuntimeError if it is stopped."""
        return self._node(node).pid

    def ended(self) -> list[str]:
        """The brokers that have ended by themselves, such as `broker 2 ended with code 1`."""
        endings = ((node.node_id, node.ended()) for node in self._nodes.values())
        return [f"broker {node_id} {how}" for node_id, how in endings if how is not None]

    def start(self, node: int | None = None) -> Self:
        """Start a broker, or all that are not running, and wait until they serve.

        Raises BrokerStartError; RuntimeError after `close`.
        """
        if self._is_closed:
            raise RuntimeError(f"this {type(self).__name__} is closed and its data is removed; create another one")
        chosen = [self._node(node)] if node is not None and self._nodes else None
        if not self._nodes:
            self._open()
        with contextlib.ExitStack() as undo:
            if not self._ready:
                undo.callback(self.close)
            self._start([each for each in chosen or self._nodes.values() if not each.is_running])
            undo.pop_all()
        Cluster.running.add(self)
        return self

    def _start(self, nodes: Iterable[NodeProcess]) -> None:
        for node in nodes:
            node.kill()  # the remains of a process that has ended
            node.start()
        for node in nodes:
            self._ready[node.node_id] = node.wait_until_ready()

    def stop(self, node: int | None = None) -> None:
        """Stop a broker, or all, as SIGTERM does; a broker hands over what it leads first. Data and port are kept."""
        chosen = self._chosen(node)
        for each in chosen if len(chosen) > 1 else ():
            each.hand_over()  # one after the other: if all stopped at once, none would be in sync at the next start
        for each in chosen:
            each.stop()

    def restart(self, node: int | None = None) -> None:
        """Stop a broker, or all, and start it again."""
        self.stop(node)
        self.start(node)

    def kill(self, node: int | None = None) -> None:
        """End a broker, or all, as kill -9 does. Data and port are kept."""
        for each in self._chosen(node):
            each.kill()

    def pause(self, node: int | None = None) -> None:
        """Halt a broker, or all: connections stay open, and requests get no response. Raises RuntimeError if it is
        stopped."""
        for each in self._chosen(node):
            each.pause()

    def resume(self, node: int | None = None) -> None:
        """Let a paused broker, or all, continue."""
        for each in self._chosen(node):
            each.resume()

    def snapshot(self) -> Snapshot:
        """Copy the data of all brokers, to which `restore` returns. Running brokers are stopped for the copy and then
        started again.

        Raises RuntimeError before the first start and after `close`; ValueError for more than SNAPSHOTS_MAX snapshots.
        """
        with self._halted() as directory:
            return take(directory)

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the data of all brokers with that of a snapshot. Running brokers are stopped before and started again
        after it.

        Close clients before this: offsets, epochs and producer ids that they know may not exist any more. Raises
        ValueError for a snapshot of another cluster, RuntimeError as `snapshot` does.
        """
        if snapshot.of != self._directory:
            raise ValueError(f"{snapshot!r} is of another cluster; take one with {type(self).__name__}.snapshot()")
        with self._halted():
            put_back(snapshot)

    @contextlib.contextmanager
    def _halted(self) -> Iterator[Path]:
        """Stop the running brokers within a `with` block. Yields the directory."""
        if self._directory is None or self._is_closed:
            state = "is closed" if self._is_closed else "has not been started"
            raise RuntimeError(f"this {type(self).__name__} {state}, so it has no data")
        running = [node.node_id for node in self._nodes.values() if node.is_running]
        self.stop()
        try:
            yield self._directory
        finally:
            self._start([self._nodes[node_id] for node_id in running])

    @contextlib.contextmanager
    def fault(self, api: str, *, node: int | None = None, **what: Unpack[FaultArguments]) -> Iterator[Fault]:
        """Disturb requests of clients within a `with` block, at one broker or at all.

        `api` is the name of a request, such as "Produce". Exactly one of these arguments sets the effect: `error` (the
        name of the error code in the response), `delay_s`, `no_reply`, `disconnect`, or `lost_reply` (the request is
        processed, and the connection is closed before the response). These select the requests, counted at each broker:
        `topic`, `group`, `client_id`, `skip` (the number that pass first), `times` (the number that are affected after
        that), `probability`. Requests of brokers are not affected. Raises ValueError for a fault that can never match.
        """
        fault = Fault(self._chosen(node), api, what)
        try:
            yield fault
        finally:
            fault.heal()

    def close(self) -> None:
        """Kill all brokers, because their data is no longer needed, and remove the data."""
        Cluster.running.discard(self)
        self._is_closed = True
        for node in self._nodes.values():
            node.kill()
        self._ports.close()
        alive, self._alive = self._alive, None
        if alive is not None:
            alive.close()
        if self._remover is not None:
            # a process that the tests have forked may hold the pipe: then the directory is removed after its end
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._remover.wait(STOP_TIMEOUT_S)

    def _chosen(self, node: int | None) -> list[NodeProcess]:
        return list(self._nodes.values()) if node is None else [self._node(node)]

    def _node(self, node: int) -> NodeProcess:
        if node not in self.nodes:
            raise ValueError(f"there is no broker {node}: this {type(self).__name__} has {_listed(self.nodes)}")
        if not self._nodes:
            raise RuntimeError(f"this {type(self).__name__} has not been started; use it in a `with` statement")
        return self._nodes[node]

    def _open(self) -> None:
        """Create the directory and plan the brokers. Raises BrokerStartError for invalid settings."""
        directory = self._directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        reading, writing = os.pipe()
        self._alive = os.fdopen(writing, "wb", buffering=0)
        with os.fdopen(reading, "rb", buffering=0) as end:
            self._remover = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _REMOVE, str(directory)], stdin=end, **apart()
            )
        try:
            commands = self._commands(directory)
        except ConfigError as error:
            self.close()
            raise BrokerStartError(f"kpybroker does not start: {str(error).removeprefix('--set: ')}") from error
        for node_id, command in commands.items():
            log = directory / f"node-{node_id}.log"
            self._nodes[node_id] = NodeProcess(node_id, command, log, self._alive)
        self._ports.let_nodes_listen()

    def _commands(self, directory: Path) -> dict[int, list[str]]:
        """By node, the arguments of the program. Raises ConfigError."""
        if self._count > 1:
            wanted = LocalClusterOptions(self._count, 0, None, self._settings)
            nodes = plan(directory, wanted, DEV_DEFAULTS, self._ports)
            for node in nodes:
                assert node.config, "invalid settings are refused here"
                node.write()
            return {node.node_id: ["serve", "--config", str(node.properties_file)] for node in nodes}
        port = self._ports.hold(0)
        command = ["dev", "--port", str(port), "--data-dir", str(directory / "data")]
        given = [part for name, value in self._settings.items() for part in ("--set", f"{name}={value}")]
        return {1: [*command, *(["--secure"] if self._is_secure else []), *given]}


class Broker(Cluster):
    """One broker."""

    def __init__(self, config: Mapping[str, object] | None = None, *, secure: bool = False) -> None:
        """See Cluster."""
        super().__init__(1, config, secure=secure)

    @property
    def pid(self) -> int:
        """Its process id. Raises RuntimeError if it is stopped."""
        return self.pid_of(1)


def _checked(config: Mapping[str, object] | None) -> dict[str, str]:
    """The settings as text. Raises TypeError, ValueError."""
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(
            f"config is a mapping of settings, such as {{'num.partitions': 3}}, not {type(config).__name__}"
        )
    settings = {}
    for name, value in (config or {}).items():
        if not isinstance(name, str) or not name.strip() or "=" in name:  # it may have a secret, so it is not shown
            raise ValueError("cannot read the name of a setting: write config={'num.partitions': 3}")
        if name in DATA_DIR_SETTINGS:
            raise ValueError(f"{name}: the broker has a temporary directory, and no other can be set")
        settings[name] = as_setting(value)
    return settings


def _listed(nodes: list[int]) -> str:
    return f"broker {nodes[0]}" if len(nodes) == 1 else f"brokers {nodes[0]} to {nodes[-1]}"
