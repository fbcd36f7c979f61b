"""Brokers for tests, each in its own process: `Broker` is one broker, `Cluster` is several.

They listen on free ports of 127.0.0.1 and keep these ports and their data while they are stopped and started. The data
is in a temporary directory, which is removed even if the test process and the brokers are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, Unpack

from kpybroker.broker import served_versions
from kpybroker.cli.local_cluster import BROKERS_MAX, DEV_DEFAULTS, LocalClusterOptions, LocalNode, Ports, plan
from kpybroker.client.recorded import RecordedRequest
from kpybroker.config import BrokerConfig
from kpybroker.errors import ConfigError
from kpybroker.testing import damage, operations, weather
from kpybroker.testing.clock import Clock
from kpybroker.testing.fault import DiskFaultArguments, Fault, FaultArguments, Faults, disk_fault, request_fault
from kpybroker.testing.kafka import Kafka, as_setting
from kpybroker.testing.node import BrokerStartError, ClusterNode, ReadyFacts
from kpybroker.testing.output import BrokerOutput
from kpybroker.testing.recording import Recording, Recordings, last_requests
from kpybroker.testing.remover import remover
from kpybroker.testing.snapshot import Snapshot, put_back, take
from kpybroker.testing.spares import SPARES

_PORT = re.compile(r":(\d+)")
PORT_MAX = 65535
DATA_DIR_SETTINGS = ("log.dir", "log.dirs")


class Cluster(Kafka):
    """Several brokers, which are also the voters. Topics have up to three replicas, and acks=all needs two.

    A context manager, also for `async with`. Without a `with` statement, call `start()` first and `close()` last.
    """

    running: ClassVar[set[Cluster]] = set()
    """The clusters of this process that have been started and not yet closed."""
    closed: ClassVar[int] = 0
    """The number of clusters of this process that have been closed."""

    def __init__(
        self,
        brokers: int = 3,
        config: Mapping[str, object] | None = None,
        *,
        secure: bool = False,
        in_thread: bool = False,
        api_versions: Mapping[str, tuple[int, int] | None] | None = None,
        port: int = 0,
    ) -> None:
        """`config`: settings of every broker, by Kafka's names. `secure`: TLS, a login and ACLs, as `kpybroker dev
        --secure` has them, only for one broker; `client` has the settings of clients. `in_thread`: run the brokers in
        threads of this process, which start faster; tests that are busy or are halted in a debugger hold them up.
        `api_versions`: the lowest and highest version of some APIs that clients may use, as with an older broker, or
        None for an API that it lacks, such as {"Fetch": (4, 11), "ConsumerGroupHeartbeat": None}. `port`: the port of
        the first broker, which the others follow; 0 picks free ones.

        Raises TypeError and ValueError for invalid arguments.
        """
        super().__init__("")
        for name, value in (("brokers", brokers), ("port", port)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}={value!r}: give a number, such as {name}={3 if name == 'brokers' else 9092}")
        if not 0 <= port <= PORT_MAX:
            raise ValueError(f"port={port}: must be from 0 to {PORT_MAX}")
        if not 1 <= brokers <= BROKERS_MAX:
            raise ValueError(f"brokers={brokers}: must be from 1 to {BROKERS_MAX}")
        if secure and brokers > 1:
            raise ValueError("secure=True is for one broker; for several, set TLS and logins in config")
        self._count = brokers
        self._settings = _checked(config) | _limited(api_versions)
        self._is_secure = secure
        self._is_in_thread = in_thread
        self._port = port
        self._directory: Path | None = None
        self._nodes: dict[int, ClusterNode] = {}
        self._ready: dict[int, ReadyFacts] = {}
        self._ports_of: dict[int, list[int]] = {}
        """The ports of each broker's listeners."""
        self._cuts: list[set[tuple[int, int]]] = []
        """The pairs of brokers that are cut off from each other, by `with` block."""
        self.clock = Clock(lambda: list(self._nodes.values()))
        """The clock of the brokers, which `clock.advance` moves forward."""
        self._ports = Ports()
        self._recordings = Recordings()
        self._faults = Faults()
        self._is_closed = False

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

    def bootstrap_of(self, node: int) -> str:
        """`host:port` of one broker. Raises RuntimeError before the first start."""
        self._node(node)
        return self._ready[node].bootstrap

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

    @property
    def running_nodes(self) -> list[int]:
        """The ids of the brokers that run."""
        return [node.node_id for node in self._nodes.values() if node.is_running]

    def pid_of(self, node: int) -> int:
        """The process id of a broker. Raises RuntimeError if it is stopped."""
        return self._node(node).pid

    def data_of(self, node: int) -> Path:
        """The directory with a broker's data. Change it only while the broker is stopped. Raises RuntimeError before
        the first start."""
        self._node(node)
        assert self._directory is not None, "a node has a directory"
        return self._directory / (f"node-{node}" if self._count > 1 else "data")

    def ended(self) -> list[str]:
        """The brokers that have ended by themselves, such as `broker 2 ended with code 1`."""
        endings = ((node.node_id, node.ended()) for node in self._nodes.values())
        return [f"broker {node_id} {how}" for node_id, how in endings if how is not None]

    def start(self, node: int | None = None) -> Self:
        """Start a broker, or all that are not running, and wait until they serve.

        Raises BrokerStartError; RuntimeError after `close`.
        """
        self._require_open()
        chosen = [self._node(node)] if node is not None and self._nodes else None
        if not self._nodes:
            self._open()
            if Cluster.closed and not self._is_in_thread:  # the tests start one cluster after another
                SPARES.keep(self._count + 1)
        with contextlib.ExitStack() as undo:
            if not self._ready:
                undo.callback(self.close)
            self._start([each for each in chosen or self._nodes.values() if not each.is_running])
            undo.pop_all()
        Cluster.running.add(self)
        SPARES.refill()
        return self

    def _start(self, nodes: Iterable[ClusterNode]) -> None:
        for node in nodes:
            node.kill()  # the remains of a process that has ended
            node.start(self.clock.ahead_ms)
        for node in nodes:
            self._ready[node.node_id] = node.wait_until_ready()
            self._recordings.after_start(node)
            self._faults.after_start(node)
        if self._cuts:
            self._apply_cuts()

    def stop(self, node: int | None = None) -> None:
        """Stop a broker, or all, as SIGTERM does; a broker hands over what it leads first. Data and port are kept."""
        chosen = self._chosen(node)
        self._before_end(chosen)
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
        self._before_end(self._chosen(node))
        for each in self._chosen(node):
            each.kill()

    def pause(self, node: int | None = None) -> None:
        """Halt a broker, or all: connections stay open, and requests get no response. Raises RuntimeError if it is
        stopped."""
        self._before_end(self._usable(node))
        for each in self._chosen(node):
            each.pause()

    def resume(self, node: int | None = None) -> None:
        """Let a paused broker, or all, continue, without the faults, cuts and recordings that have ended meanwhile."""
        for each in self._usable(node):
            each.resume()
            if each.takes_commands:
                self._faults.after_resume(each)
                self._recordings.after_resume(each)
        self._apply_cuts()

    def _before_end(self, nodes: Sequence[ClusterNode]) -> None:
        """Fetch what these nodes alone know, before they end or are paused."""
        self._recordings.before_end(nodes)
        self._faults.before_end(nodes)

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
        running = self.running_nodes
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
        with self._healing(Fault(self._usable(node), api, request_fault(api, what))) as fault:
            yield fault

    @contextlib.contextmanager
    def disk_fault(self, *, node: int | None = None, **what: Unpack[DiskFaultArguments]) -> Iterator[Fault]:
        """Disturb the disk of one broker, or of all, within a `with` block.

        Exactly one of these arguments sets the effect: `full` (writes fail), `broken` (reads, writes and syncs fail),
        `slow_s` (each write and each sync takes that much longer), `stuck` (syncs do not end before the block does).
        `topic` and `partition` select the files. Raises ValueError for contradictory arguments.
        """
        with self._healing(Fault(self._usable(node), "the disk", disk_fault(what), "disk ")) as fault:
            yield fault

    @contextlib.contextmanager
    def cut(self, one: int, other: int) -> Iterator[None]:
        """Cut two brokers off from each other within a `with` block. Clients reach both."""
        self._require_open()
        if one == other:
            raise ValueError(f"broker {one} cannot be cut off from itself")
        pairs = {(self._node(one).node_id, self._node(other).node_id)}
        with self._cut_off(pairs):
            yield

    @contextlib.contextmanager
    def isolate(self, node: int) -> Iterator[None]:
        """Cut a broker off from all others within a `with` block. Clients reach all of them."""
        self._require_open()
        pairs = {(self._node(node).node_id, other) for other in self.nodes if other != node}
        if not pairs:
            raise ValueError("this Broker has no other brokers to cut it off from")
        with self._cut_off(pairs):
            yield

    @contextlib.contextmanager
    def _cut_off(self, pairs: set[tuple[int, int]]) -> Iterator[None]:
        self._cuts.append(pairs)
        try:
            self._apply_cuts()
            yield
        finally:
            self._cuts.remove(pairs)
            self._apply_cuts()

    def _apply_cuts(self) -> None:
        """Tell every running broker the ports that it cannot reach; a paused one is told when it continues."""
        cut = {pair for pairs in self._cuts for pair in pairs}
        for node in (each for each in self._nodes.values() if each.takes_commands):
            others = {other for pair in cut if node.node_id in pair for other in pair} - {node.node_id}
            node.command({"do": "cut", "ports": [port for other in others for port in self._ports_of[other]]})

    @contextlib.contextmanager
    def lose_controller(self) -> Iterator[int]:
        """Kill the active controller, wait until another broker is the controller, and start it again after the `with`
        block. Yields its id. Raises ValueError if no majority of the controllers would remain."""
        if self._count < 3:
            raise ValueError(f"{self._count} brokers have one controller; three brokers can lose one")
        lost = self.controller
        self.kill(lost)
        try:
            self._run(operations.controller)  # waits until there is another one
            yield lost
        finally:
            self.start(lost)

    def compact(self, topic: str) -> None:
        """Compact a topic on all brokers now, with its active segments. `min.compaction.lag.ms` still counts."""
        for node in self._running_nodes():
            node.command({"do": "compact", "topic": topic})

    def apply_retention(self) -> None:
        """Delete the records of all topics that are too old or exceed the size limit, now."""
        for node in self._running_nodes():
            node.command({"do": "retain and clean"})

    def _running_nodes(self) -> list[ClusterNode]:
        return [node for node in self._usable(None) if node.is_running]

    def tear_tail(self, topic: str, partition: int, size_bytes: int, *, node: int = 1) -> None:
        """Cut bytes off the end of a partition's last segment, as a loss of power may do. The broker must be stopped.

        Raises RuntimeError while it runs; ValueError if it has no replica of the partition, or too few bytes.
        """
        damage.tear_tail(damage.segment_of(self._data_at_rest(node), topic, partition), size_bytes)

    def flip_bit(self, topic: str, partition: int, *, node: int = 1) -> None:
        """Invert a bit in the first record of a partition's last segment. The broker must be stopped.

        Raises as `tear_tail` does.
        """
        damage.flip_bit(damage.segment_of(self._data_at_rest(node), topic, partition))

    def lose_data(self, node: int) -> None:
        """Remove all data of a broker, as if its disk had been replaced. The broker must be stopped, and others must
        have its replicas and its votes. Raises RuntimeError while it runs."""
        shutil.rmtree(self._data_at_rest(node))

    def _data_at_rest(self, node: int) -> Path:
        if self._node(node).is_running:
            raise RuntimeError(f"broker {node} runs; call stop({node}) or kill({node}) before its data is damaged")
        return self.data_of(node)

    @contextlib.contextmanager
    def weather(self, name: str) -> Iterator[None]:
        """Common disturbances within a `with` block: "flaky_network", "slow_disk" or "rolling_restart".

        Raises ValueError for another name.
        """
        self._require_open()
        with weather.weather(self, name):
            yield

    @contextlib.contextmanager
    def _healing(self, fault: Fault) -> Iterator[Fault]:
        self._faults.add(fault)
        try:
            yield fault
        finally:
            fault.heal()

    @property
    def requests(self) -> list[RecordedRequest]:
        """The last requests of clients to the running brokers, at most 1,000 and 1 MB for each broker.

        A larger frame than 16 kB is not kept; of a larger Produce request everything but the records is kept.
        """
        return last_requests(self._chosen(None))

    def record(self, node: int | None = None) -> Recording:
        """Record the requests of clients within a `with` block, at one broker or at all.

        Raises RuntimeError if no broker runs, ValueError for more than 16 recordings at a time.
        """
        return self._recordings.begin(self._usable(node))

    def close(self) -> None:
        """Kill all brokers, because their data is no longer needed, and remove the data."""
        Cluster.running.discard(self)
        self._is_closed = True
        Cluster.closed += 1
        for node in self._nodes.values():
            node.kill()
        self._ports.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _addresses(self) -> str:
        """Those of brokers that run and are not cut off, then the others, which may not know what has happened. Raises
        RuntimeError if none runs."""
        self._require_open()
        if self._ready and not self.running_nodes and not self.ended():
            raise RuntimeError(f"no broker of this {type(self).__name__} is running; call start() first")
        cut = [node for pairs in self._cuts for pair in pairs for node in pair]
        running = self.running_nodes
        order = sorted(self._ready, key=lambda node: (node not in running, cut.count(node), node))
        return ",".join(self._ready[node].bootstrap for node in order) or self.bootstrap

    def _now_ms(self) -> int:
        return super()._now_ms() + self.clock.ahead_ms

    def _require_open(self) -> None:
        """Raise RuntimeError after `close`."""
        if self._is_closed:
            raise RuntimeError(f"this {type(self).__name__} is closed and its data is removed; create another one")

    def _usable(self, node: int | None) -> list[ClusterNode]:
        """A broker, or all. Raises RuntimeError after `close`."""
        self._require_open()
        return self._chosen(node)

    def _chosen(self, node: int | None) -> list[ClusterNode]:
        return list(self._nodes.values()) if node is None else [self._node(node)]

    def _node(self, node: int) -> ClusterNode:
        if node not in self.nodes:
            raise ValueError(f"there is no broker {node}: this {type(self).__name__} has {_listed(self.nodes)}")
        if not self._nodes:
            raise RuntimeError(f"this {type(self).__name__} has not been started; use it in a `with` statement")
        return self._nodes[node]

    def _open(self) -> None:
        """Create the directory and plan the brokers. Raises BrokerStartError for invalid settings."""
        directory = self._directory = remover().new_directory()
        try:
            self._nodes = self._in_threads(directory) if self._is_in_thread else self._in_processes(directory)
        except ConfigError as error:
            self.close()
            raise BrokerStartError(f"kpybroker does not start: {str(error).removeprefix('--set: ')}") from error
        self._ports.let_nodes_listen()

    def _in_processes(self, directory: Path) -> dict[int, ClusterNode]:
        from kpybroker.testing.node_process import NodeProcess

        if self._count > 1:
            return {
                node.node_id: NodeProcess(
                    node.node_id, ["serve", "--config", str(node.properties_file)], _log_of(directory, node.node_id)
                )
                for node in self._plan(directory)
            }
        command = ["dev", "--port", str(self._ports.hold(self._port)), "--data-dir", str(directory / "data")]
        given = [part for name, value in self._settings.items() for part in ("--set", f"{name}={value}")]
        arguments = [*command, *(["--secure"] if self._is_secure else []), *given]
        return {1: NodeProcess(1, arguments, _log_of(directory, 1))}

    def _in_threads(self, directory: Path) -> dict[int, ClusterNode]:
        from kpybroker.cli.serving import configure_one
        from kpybroker.testing.node_thread import NodeThread

        def configure_node(node: LocalNode) -> tuple[BrokerConfig, Path | None]:
            return node.config, None

        def configure_broker() -> tuple[BrokerConfig, Path | None]:
            config, files = configure_one(wanted, directory / "data", is_secure=self._is_secure)
            return config, None if files is None else files.client

        if self._count > 1:
            return {
                node.node_id: NodeThread(node.node_id, partial(configure_node, node), _log_of(directory, node.node_id))
                for node in self._plan(directory)
            }
        wanted = LocalClusterOptions(1, self._ports.hold(self._port), None, self._settings)
        return {1: NodeThread(1, configure_broker, _log_of(directory, 1))}

    def _plan(self, directory: Path) -> list[LocalNode]:
        """The nodes of a cluster of several brokers. Raises ConfigError."""
        nodes = plan(
            directory, LocalClusterOptions(self._count, self._port, None, self._settings), DEV_DEFAULTS, self._ports
        )
        for node in nodes:
            assert node.config, "invalid settings are refused here"
            node.write()
            self._ports_of[node.node_id] = [int(port) for port in _PORT.findall(node.properties["listeners"])]
        return nodes


def _log_of(directory: Path, node_id: int) -> Path:
    return directory / f"node-{node_id}.log"


class Broker(Cluster):
    """One broker."""

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        secure: bool = False,
        in_thread: bool = False,
        api_versions: Mapping[str, tuple[int, int] | None] | None = None,
    ) -> None:
        """See Cluster."""
        super().__init__(1, config, secure=secure, in_thread=in_thread, api_versions=api_versions)

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


def _limited(api_versions: Mapping[str, tuple[int, int] | None] | None) -> dict[str, str]:
    """The setting for these versions, if there are any. Raises TypeError, ValueError."""
    if not api_versions:
        return {}
    for name, versions in api_versions.items():
        if versions is not None and not (
            isinstance(versions, tuple) and len(versions) == 2 and all(type(each) is int for each in versions)
        ):
            raise TypeError(f"api_versions[{name!r}] is {versions!r}: give (lowest, highest), or None for none")
    try:
        return {served_versions.SETTING: served_versions.as_setting(api_versions)}
    except ConfigError as error:
        raise ValueError(f"api_versions: {error}") from None


def _listed(nodes: list[int]) -> str:
    return f"broker {nodes[0]}" if len(nodes) == 1 else f"brokers {nodes[0]} to {nodes[-1]}"
