"""Brokers for tests, each in its own process: `Broker` is one broker, `Cluster` is several.

They listen on free ports of 127.0.0.1 and keep these ports and their data while they are stopped and started. The data
is in a temporary directory, which is removed even if the test process and the brokers are killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, Unpack

from kpybroker.cli.local_cluster import Ports, voters_among
from kpybroker.client.recorded import RecordedRequest
from kpybroker.errors import ConfigError
from kpybroker.testing import damage, operations, weather
from kpybroker.testing.arguments import whole_number
from kpybroker.testing.clock import Clock
from kpybroker.testing.cluster_plan import ClusterPlan, Versions
from kpybroker.testing.cuts import Cuts, Pair
from kpybroker.testing.fault import DiskFaultArguments, Fault, FaultArguments, Faults, disk_fault, request_fault
from kpybroker.testing.kafka import Kafka
from kpybroker.testing.node import START_TIMEOUT_S, BrokerStartError, ClusterNode, Follower, ReadyFacts, Turn
from kpybroker.testing.output import BrokerOutput
from kpybroker.testing.recording import Recording, Recordings, last_requests
from kpybroker.testing.remover import remover
from kpybroker.testing.snapshot import Snapshot, put_back, take
from kpybroker.testing.spares import SPARES
from kpybroker.testing.waiting import becomes_true


class Cluster(Kafka):
    """Several brokers, which are also the voters. Topics have up to three replicas, and acks=all needs two.

    A context manager, also for `async with`. Without a `with` statement, call `start()` first and `close()` last.
    Several threads may use it: one at a time starts and stops brokers, and others may pause, resume and kill some
    meanwhile. In a process that the tests have forked, only the calls of Kafka work.
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
        api_versions: Versions | None = None,
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
        self._plan = ClusterPlan.of(
            brokers, config, secure=secure, in_thread=in_thread, api_versions=api_versions, port=port
        )
        self._starting = Turn()
        """Held by the thread that stops brokers, or starts their processes. It is taken before the other one."""
        self._telling = Turn()
        """Held by the thread that tells brokers something, pauses them or ends them."""
        self._owner = os.getpid()
        """The process that created this object, which alone can control the brokers."""
        self._directory: Path | None = None
        self._nodes: dict[int, ClusterNode] = {}
        self._ready: dict[int, ReadyFacts] = {}
        self._ports_of: dict[int, list[int]] = {}
        """The ports of each broker's listeners."""
        self.clock = Clock(self._usable, self._telling)
        """The clock of the brokers, which `clock.advance` moves forward."""
        self._ports = Ports()
        self._recordings = Recordings(self._telling)
        self._faults = Faults(self._telling)
        self._cuts = Cuts(self._nodes, self._ports_of)
        self._followers: tuple[Follower, ...] = (self._recordings, self._faults, self._cuts)
        self._is_closed = False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        starting = asyncio.get_running_loop().run_in_executor(None, self.start)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # the thread goes on
            starting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            await asyncio.to_thread(self.close)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"at {self.bootstrap}" if self._ready else "not started"
        return f"<{type(self).__name__} {state}>"

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker. Raises RuntimeError before the first start and after `close`."""
        self._require_started()
        return ",".join(self._ready[node].bootstrap for node in sorted(self._ready))

    def bootstrap_of(self, node: int) -> str:
        """`host:port` of one broker. Raises RuntimeError before the first start."""
        self._require_started()
        return self._ready[self._node(node).node_id].bootstrap

    @property
    def client_properties(self) -> Path | None:
        """The file with the settings of a client that logs in; None if the cluster has no logins."""
        self._require_started()
        return self._ready[1].client

    @property
    def http(self) -> list[str]:
        """host:port of /metrics, /healthz and /readyz of each broker; [] unless `kpybroker.http.port` is set."""
        self._require_started()
        return [facts.http for _, facts in sorted(self._ready.items()) if facts.http is not None]

    @property
    def nodes(self) -> list[int]:
        """The ids of the brokers, from 1 on."""
        return list(range(1, self._plan.brokers + 1))

    @property
    def log(self) -> str:
        """The brokers' output on standard error: warnings, and events of a cluster."""
        return self.output.since({}, sys.maxsize)

    @property
    def output(self) -> BrokerOutput:
        """The output of the brokers in parts. Raises RuntimeError before the first start and after `close`."""
        return BrokerOutput(self._require_started())

    @property
    def running_nodes(self) -> list[int]:
        """The ids of the brokers that run. Raises RuntimeError in a forked process."""
        self._require_own()
        return [node.node_id for node in self._nodes.values() if node.is_running]

    def pid_of(self, node: int) -> int:
        """The process id of a broker. Raises RuntimeError if it is stopped."""
        [found] = self._usable(node)
        return found.pid

    def data_of(self, node: int) -> Path:
        """The directory with a broker's data. Change it only while the broker is stopped. Raises RuntimeError before
        the first start and after `close`."""
        directory = self._require_started()
        self._node(node)
        return directory / (f"node-{node}" if self._plan.brokers > 1 else "data")

    def ended(self) -> list[str]:
        """The brokers that have ended by themselves, such as `broker 2 ended with code 1`."""
        if self._is_inherited:
            return []
        endings = ((node.node_id, node.ended()) for node in self._nodes.values())
        return [f"broker {node_id} {how}" for node_id, how in endings if how is not None]

    def paused(self) -> list[str]:
        """The brokers that are paused, such as `broker 2 is paused; resume(2) lets it continue`."""
        paused = (each.node_id for each in self._nodes.values() if each.is_paused)
        return [f"broker {node_id} is paused; resume({node_id}) lets it continue" for node_id in paused]

    def start(self, node: int | None = None) -> Self:
        """Start a broker, or all that are not running, and wait until they serve.

        Raises BrokerStartError; RuntimeError after `close`, and for a single one of several brokers at the first start.
        """
        self._require_own()
        with contextlib.ExitStack() as undo:
            with self._starting:
                self._require_open()
                if not self._nodes:
                    if node is not None and self._plan.brokers > 1:
                        raise RuntimeError(f"broker {node} cannot serve without the others; call start() first")
                    self._open()
                    undo.callback(self.close)
                    if Cluster.closed and not self._plan.is_in_thread:  # the tests start one cluster after another
                        SPARES.keep(self._plan.brokers + 1)
                chosen = self._chosen(node)
                new = self._launch(chosen)
            self._wait(new)
            for each in chosen:
                if each not in new:
                    self._wait_for_other(each)
            with self._starting:
                self._require_open()
                Cluster.running.add(self)
            undo.pop_all()
        SPARES.refill()
        return self

    def _launch(self, nodes: Iterable[ClusterNode]) -> list[ClusterNode]:
        """Start the processes of those that do not run. Returns these, for which `_wait` waits."""
        new = [each for each in nodes if not each.is_running]
        for node in new:
            self._require_open()  # another thread may have closed it
            node.kill()  # the remains of a process that has ended
            node.start(self.clock.ahead_ms)
        return new

    def _wait(self, nodes: Iterable[ClusterNode]) -> None:
        """Wait until these serve. Others may be started meanwhile: the first needs a majority of the controllers."""
        for node in nodes:
            facts = node.wait_until_ready()
            with self._telling:
                self._ready[node.node_id] = facts
                if not (node.takes_commands or node.is_paused):
                    raise BrokerStartError(f"broker {node.node_id} {node.ended() or 'was stopped'} while it started")
                for follower in self._followers if node.takes_commands else ():
                    follower.after_start(node)

    def _wait_for_other(self, node: ClusterNode) -> None:
        """Wait until a node serves that another thread has started, if it does not end."""
        becomes_true(lambda _: node.takes_commands or node.is_paused or not node.is_running, START_TIMEOUT_S)

    def stop(self, node: int | None = None) -> None:
        """Stop a broker, or all, as SIGTERM does; a broker hands over what it leads first. Data and port are kept.

        This and the following calls raise RuntimeError before the first start. After `close`, `stop` and `kill` do
        nothing, and the others raise RuntimeError.
        """
        if not self._is_closed:
            nodes = self._usable(node)
            with self._starting:
                self._stop(nodes)

    def _stop(self, nodes: Sequence[ClusterNode]) -> None:
        with self._telling:
            self._before_end(nodes)
            for each in nodes if len(nodes) > 1 else ():
                each.hand_over()  # one after the other: if all stopped at once, none would be in sync at the next start
            for each in nodes:
                each.stop()

    def restart(self, node: int | None = None) -> None:
        """Stop a broker, or all, and start it again."""
        nodes = self._usable(node)
        with self._starting:
            self._stop(nodes)
            new = self._launch(nodes)
        self._wait(new)

    def kill(self, node: int | None = None) -> None:
        """End a broker, or all, as kill -9 does. Data and port are kept."""
        if self._is_closed:
            return
        nodes = self._usable(node)
        with self._telling:
            self._before_end(nodes)
            for each in nodes:
                each.kill()

    def pause(self, node: int | None = None) -> None:
        """Halt a broker, or all: connections stay open, and requests get no response. Raises RuntimeError if it is
        stopped."""
        nodes = self._usable(node)
        with self._telling:
            for each in nodes:
                if not each.is_running:
                    raise RuntimeError(f"broker {each.node_id} {each.ended() or 'is stopped'}; call start() first")
            self._before_end(nodes)
            for each in nodes:
                each.pause()

    def resume(self, node: int | None = None) -> None:
        """Let a paused broker, or all, continue, without the faults, cuts and recordings that have ended meanwhile."""
        for each in self._usable(node):
            each.resume()
            with self._telling:
                for follower in self._followers if each.takes_commands else ():
                    follower.after_resume(each)

    def _before_end(self, nodes: Sequence[ClusterNode]) -> None:
        """Fetch what these nodes alone know, before they end or are paused."""
        for follower in self._followers:
            follower.before_end(nodes)

    def snapshot(self) -> Snapshot:
        """Copy the data of all brokers, to which `restore` returns. Running brokers are stopped for the copy and then
        started again; paused ones are paused again.

        Raises ValueError for more than SNAPSHOTS_MAX snapshots.
        """
        with self._halted() as directory:
            return take(directory)

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the data of all brokers with that of a snapshot. Running brokers are stopped before and started again
        after it.

        Close clients before this: offsets, epochs and producer ids that they know may not exist any more. Raises
        ValueError for a snapshot of another cluster, TypeError.
        """
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"{snapshot!r} is no snapshot; take one with {type(self).__name__}.snapshot()")
        if snapshot.of != self._require_started():
            raise ValueError(f"{snapshot!r} is of another cluster; take one with {type(self).__name__}.snapshot()")
        with self._halted():
            put_back(snapshot)

    @contextlib.contextmanager
    def _halted(self) -> Iterator[Path]:
        """Stop the running brokers within a `with` block. Yields the directory."""
        nodes, directory = self._usable(), self._require_started()
        with self._starting:
            running = [node for node in nodes if node.is_running]
            paused = [node for node in running if node.is_paused]
            self._stop(running)
            try:
                yield directory
            finally:
                self._wait(self._launch(running))
                for node in paused:
                    node.pause()

    @contextlib.contextmanager
    def fault(self, api: str, *, node: int | None = None, **what: Unpack[FaultArguments]) -> Iterator[Fault]:
        """Disturb requests of clients within a `with` block, at one broker or at all.

        `api` is the name of a request, such as "Produce". Exactly one of these arguments sets the effect: `error` (the
        name of the error code in the response), `delay_s`, `no_reply`, `disconnect`, or `lost_reply` (the request is
        processed, and the connection is closed before the response). These select the requests, counted at each broker:
        `topic`, `group`, `client_id`, `skip` (the number that pass first), `times` (the number that are affected after
        that), `probability`. Requests of brokers are not affected. Raises ValueError for a fault that can never match.
        """
        fault = self._faults.begin(self._usable(node), api, request_fault(api, what))
        try:
            yield fault
        finally:
            fault.heal()

    @contextlib.contextmanager
    def disk_fault(self, *, node: int | None = None, **what: Unpack[DiskFaultArguments]) -> Iterator[Fault]:
        """Disturb the disk of one broker, or of all, within a `with` block.

        Exactly one of these arguments sets the effect: `full` (writes fail), `broken` (reads, writes and syncs fail),
        `slow_s` (each write and each sync takes that much longer), `stuck` (syncs do not end before the block does).
        `topic` and `partition` select the files. Raises ValueError for contradictory arguments.
        """
        fault = self._faults.begin(self._usable(node), "the disk", disk_fault(what), "disk ")
        try:
            yield fault
        finally:
            fault.heal()

    @contextlib.contextmanager
    def cut(self, one: int, other: int) -> Iterator[None]:
        """Cut two brokers off from each other within a `with` block. Clients reach both."""
        if one == other:
            raise ValueError(f"broker {one} cannot be cut off from itself")
        with self._cut_off(one, [other]):
            yield

    @contextlib.contextmanager
    def isolate(self, node: int) -> Iterator[None]:
        """Cut a broker off from all others within a `with` block. Clients reach all of them."""
        self._usable()
        if self._plan.brokers == 1:
            raise ValueError("this Broker has no other brokers to cut it off from")
        with self._cut_off(node, [other for other in self.nodes if other != node]):
            yield

    @contextlib.contextmanager
    def _cut_off(self, one: int, others: Sequence[int]) -> Iterator[None]:
        self._usable()
        pairs: set[Pair] = {(self._node(one).node_id, self._node(other).node_id) for other in others}
        with self._telling:
            self._cuts.begin(pairs)
        try:
            yield
        finally:
            with self._telling:
                self._cuts.end(pairs)

    @contextlib.contextmanager
    def lose_controller(self) -> Iterator[int]:
        """Kill the active controller, wait until another broker is the controller, and start it again after the `with`
        block. Yields its id. Raises ValueError if no majority of the controllers would remain."""
        nodes = self._usable()
        with self._starting:
            votes = voters_among(self._plan.brokers)
            voting = [node for node in nodes if node.node_id <= votes and node.takes_commands]
            if len(voting) - 1 <= votes // 2:
                raise ValueError(
                    f"{len(voting)} of {votes} controllers run, and {votes // 2 + 1} must remain; "
                    + ("use three brokers" if votes < 3 else "lose one at a time")
                )
            lost = self.controller
            self.kill(lost)
        try:
            self._run(operations.controller)  # waits until there is another one
            yield lost
        finally:
            self.start(lost)

    def compact(self, topic: str) -> None:
        """Compact a topic on all brokers now, with its active segments. `min.compaction.lag.ms` still counts. Raises
        ValueError for a topic that is not compacted."""
        with self._telling:
            for node in self._running():
                node.command({"do": "compact", "topic": topic})

    def apply_retention(self) -> None:
        """Delete the records of all topics that are too old or exceed the size limit, now."""
        with self._telling:
            for node in self._running():
                node.command({"do": "retain and clean"})

    def _running(self) -> list[ClusterNode]:
        return [node for node in self._usable() if node.is_running]

    def tear_tail(self, topic: str, partition: int, size_bytes: int, *, node: int = 1) -> None:
        """Cut bytes off the end of a partition's last segment, as a loss of power may do. The broker must be stopped.

        Raises RuntimeError while it runs; ValueError if it has no replica of the partition, or too few bytes.
        """
        with self._starting:
            damage.tear_tail(damage.segment_of(self._data_at_rest(node), topic, partition), size_bytes)

    def flip_bit(self, topic: str, partition: int, *, node: int = 1) -> None:
        """Invert a bit in the first record of a partition's last segment. The broker must be stopped.

        Raises as `tear_tail` does.
        """
        with self._starting:
            damage.flip_bit(damage.segment_of(self._data_at_rest(node), topic, partition))

    def lose_data(self, node: int) -> None:
        """Remove all data of a broker, as if its disk had been replaced. The broker must be stopped, and others must
        have its replicas and its votes. Raises RuntimeError while it runs."""
        with self._starting:
            shutil.rmtree(self._data_at_rest(node))

    def _data_at_rest(self, node: int) -> Path:
        data, [found] = self.data_of(node), self._usable(node)
        if found.is_running:
            raise RuntimeError(f"broker {node} runs; call stop({node}) or kill({node}) before its data is damaged")
        return data

    @contextlib.contextmanager
    def weather(self, name: str) -> Iterator[None]:
        """Common disturbances within a `with` block: "flaky_network", "slow_disk" or "rolling_restart".

        Raises ValueError for another name.
        """
        self._usable()
        with weather.weather(self, name):
            yield

    @property
    def requests(self) -> list[RecordedRequest]:
        """The last requests of clients to the running brokers, at most 1,000 and 1 MB for each broker.

        A larger frame than 16 kB is not kept; of a larger Produce request everything but the records is kept.
        """
        nodes = self._usable()
        with self._telling:
            return last_requests(nodes)

    def record(self, node: int | None = None) -> Recording:
        """Record the requests of clients within a `with` block, at one broker or at all.

        Raises RuntimeError if no broker runs, ValueError for more than 16 recordings at a time.
        """
        return self._recordings.begin(self._usable(node))

    def close(self) -> None:
        """Kill all brokers, because their data is no longer needed, and remove the data. Does nothing in a process that
        the tests have forked."""
        if self._is_inherited:
            return
        Cluster.running.discard(self)
        Cluster.closed += not self._is_closed
        self._is_closed = True
        for node in list(self._nodes.values()):
            node.kill()  # so that another thread waits no longer until it is ready
        with self._starting, self._telling:
            Cluster.running.discard(self)
            for node in self._nodes.values():
                node.kill()
            self._ports.close()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)

    def _addresses(self) -> str:
        """Those of brokers that respond and are not cut off, then the others, which may not know what has happened.
        Raises RuntimeError if none runs."""
        bootstrap = self.bootstrap
        if self._is_inherited:
            return bootstrap
        if not self.running_nodes and not self.ended():
            raise RuntimeError(f"no broker of this {type(self).__name__} is running; call start() first")
        order = sorted(self._ready, key=lambda each: (not self._nodes[each].takes_commands, self._cuts.count(each)))
        return ",".join(self._ready[node].bootstrap for node in order)

    def _silent(self) -> list[str]:
        return [] if self._is_inherited else [*self.ended(), *self.paused()]

    def _now_ms(self) -> int:
        return super()._now_ms() + self.clock.ahead_ms

    @property
    def _is_inherited(self) -> bool:
        """Whether this process was forked from the one that has created the cluster."""
        return os.getpid() != self._owner

    def _require_own(self) -> None:
        """Raise RuntimeError in a forked process."""
        if self._is_inherited:
            raise RuntimeError(
                f"this {type(self).__name__} belongs to process {self._owner}, which controls it; this process was "
                "forked from it"
            )

    def _require_open(self) -> None:
        """Raise RuntimeError after `close`."""
        if self._is_closed:
            raise RuntimeError(f"this {type(self).__name__} is closed and its data is removed; create another one")

    def _require_started(self) -> Path:
        """The directory. Raises RuntimeError before the first start and after `close`."""
        self._require_open()
        if self._directory is None or not self._ready:
            raise RuntimeError(f"this {type(self).__name__} has not been started; use it in a `with` statement")
        return self._directory

    def _usable(self, node: int | None = None) -> list[ClusterNode]:
        """A broker, or all. Raises RuntimeError in a forked process, before the first start and after `close`."""
        self._require_own()
        self._require_started()
        return self._chosen(node)

    def _chosen(self, node: int | None) -> list[ClusterNode]:
        return list(self._nodes.values()) if node is None else [self._node(node)]

    def _node(self, node: int) -> ClusterNode:
        whole_number("node", node)
        if node not in self.nodes:
            raise ValueError(f"there is no broker {node}: this {type(self).__name__} has {_listed(self.nodes)}")
        return self._nodes[node]

    def _open(self) -> None:
        """Create the directory and plan the brokers. Raises BrokerStartError for invalid settings."""
        directory = self._directory = remover().new_directory()
        try:
            for node, ports in self._plan.nodes(directory, self._ports):
                self._nodes[node.node_id] = node
                self._ports_of[node.node_id] = ports
        except ConfigError as error:
            self.close()
            raise BrokerStartError(f"kpybroker does not start: {str(error).removeprefix('--set: ')}") from error
        self._ports.let_nodes_listen()


class Broker(Cluster):
    """One broker."""

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        secure: bool = False,
        in_thread: bool = False,
        api_versions: Versions | None = None,
    ) -> None:
        """See Cluster."""
        super().__init__(1, config, secure=secure, in_thread=in_thread, api_versions=api_versions)

    @property
    def pid(self) -> int:
        """Its process id. Raises RuntimeError if it is stopped."""
        return self.pid_of(1)


def _listed(nodes: list[int]) -> str:
    return f"broker {nodes[0]}" if len(nodes) == 1 else f"brokers {nodes[0]} to {nodes[-1]}"
