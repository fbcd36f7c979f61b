"""Runs a cluster of kpybroker nodes, Apache Kafka nodes, or both, on this machine, with the same interface. Voters are
static, or one node starts as the only voter and others can be added. Each node can be killed, stopped, paused and
restarted on its data, also as a node of the other kind.

    with Cluster("kafka") as cluster:
        cluster.nodes[cluster.leader_of("topic", 0)].kill9()

`told` decides the advertised port of a listener, which may be that of a proxy (`chaos/links.py`).
"""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from oracle.asking import Conversation
from oracle.broker import KPyBroker
from oracle.kafka import CLUSTER_ID, Kafka
from oracle.secured import Secured
from oracle.target import NotStarted, ServerProcess, answers, read_json, steady_port
from oracle.tools import Ran, tool

CLIENTS, CONTROLLER = "PLAINTEXT", "CONTROLLER"
FIRST_CONTROLLER = 101
PATIENCE_S = 60.0
FIRST_VOTERS = "kpybroker.initial.controllers"
"""Settings that Kafka takes as options of kafka-storage format."""
LARGE = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "5",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
}
LARGE_KAFKA = {
    "share.coordinator.state.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


class Listening(NamedTuple):
    """A listener of a node. Its name is CLIENTS (also used between brokers) or CONTROLLER."""

    node_id: int
    name: str
    port: int


Told = Callable[[Listening], int]
"""Maps a listener to the port that is advertised for it."""


def as_it_is(listening: Listening) -> int:
    """The listener's own port, without a proxy."""
    return listening.port


class Seat(NamedTuple):
    """The role and ports of a node. A broker has a port for clients, and a controller has a port for controllers."""

    node_id: int
    is_broker: bool
    is_controller: bool
    port: int
    controller_port: int

    @property
    def listeners(self) -> list[Listening]:
        found = [Listening(self.node_id, CLIENTS, self.port)] if self.is_broker else []
        return found + ([Listening(self.node_id, CONTROLLER, self.controller_port)] if self.is_controller else [])


class ClusterNode(ServerProcess):
    """A node of either kind: a process with a seat, which can be paused."""

    seat: Seat
    secured: Secured | None = None

    @property
    def node_id(self) -> int:
        return self.seat.node_id

    @property
    def address(self) -> tuple[str, int]:
        """The address of the node's own listener, without a proxy."""
        return "127.0.0.1", self.seat.port if self.seat.is_broker else self.seat.controller_port

    def ready(self) -> bool:
        return answers(*self.address, self.secured.context if self.secured else None)

    @property
    def credentials(self) -> list[str]:
        """Options for formatting the node's directory."""
        return [] if self.secured is None else [f"--add-scram={one}" for one in self.secured.credentials]

    def prepare(self) -> None:
        """Prepare the directory for the first start, if the node does not do it itself."""
        return

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, without waiting."""
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, but receive no responses."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.signal(signal.SIGTERM)


class KafkaNode(ClusterNode, Kafka):
    """An Apache Kafka node."""

    def __init__(
        self, seat: Seat, directory: Path, settings: Mapping[str, str], heap: str, jvm: tuple[str, ...]
    ) -> None:
        Kafka.__init__(self, directory, settings, heap=heap, port=seat.port or seat.controller_port, jvm=jvm)
        self.seat = seat
        self.format_options = ()
        if FIRST_VOTERS in settings:
            alone = self.properties.pop(FIRST_VOTERS) == "standalone"
            self.format_options = ("--standalone",) if alone else ("--no-initial-controllers",)

    def prepare(self) -> None:
        self._write_properties()
        if not (self.data / "meta.properties").exists():
            self.format_options += tuple(self.credentials)
            self._format()

    def spawn(self) -> None:
        self.prepare()
        super().spawn()

    def _write_properties(self) -> None:
        self.properties_file.write_text("".join(f"{name}={value}\n" for name, value in self.properties.items()))


class KPyBrokerNode(ClusterNode, KPyBroker):
    """A kpybroker node."""

    def __init__(self, seat: Seat, directory: Path, settings: Mapping[str, str]) -> None:
        KPyBroker.__init__(self, directory, settings, port=seat.port or seat.controller_port)
        self.seat = seat

    def command(self) -> list[str]:
        self.ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "kpybroker", "serve", "--ready-file", str(self.ready_file)]
        for name, value in self.properties.items():
            command += ["--set", f"{name}={value}"]
        return command

    def ready(self) -> bool:
        return read_json(self.ready_file) is not None and super().ready()

    def prepare(self) -> None:
        if not self.credentials or (self.data / "meta.properties").exists():
            return
        file = self.directory / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in self.properties.items()))
        options = ["--config", str(file), "--cluster-id", CLUSTER_ID, *self.credentials]
        command = [sys.executable, "-m", "kpybroker", "storage", "format", *options]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise NotStarted(f"storage format failed:\n{run.stdout}{run.stderr}")

    def spawn(self) -> None:
        self.prepare()
        super().spawn()


class Cluster:
    """A cluster of `brokers` nodes 1, 2, ... that are also voters or, with `controllers`, separate voters 101, 102, ...

    kind: "kpybroker" or "kafka", of all nodes until `become`. grows: the first controller is the only voter, and others
    can be added (KIP-853); if not, all of them are static voters. properties: for all nodes; they override LARGE. heap,
    jvm: for Kafka's nodes. secured: sets up TLS, logins and ACLs; without it, listeners have none.
    """

    def __init__(
        self,
        kind: str,
        *,
        brokers: int = 3,
        controllers: int = 0,
        grows: bool = False,
        directory: Path | None = None,
        properties: Mapping[str, str] | None = None,
        told: Told = as_it_is,
        secured: Secured | None = None,
        heap: str = "512m",
        jvm: tuple[str, ...] = (),
    ) -> None:
        self.secured = secured
        self._grows = grows
        self._own = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"{kind}-cluster-"))
        ids = [*range(1, brokers + 1), *range(FIRST_CONTROLLER, FIRST_CONTROLLER + controllers)]
        self.seats = [_seat(node_id, controllers > 0) for node_id in ids]
        self._tell = told
        self.told = {(at.node_id, at.name): told(at) for seat in self.seats for at in seat.listeners}
        self._given = dict(properties or {})
        self._heap, self._jvm = heap, jvm
        self.nodes: dict[int, KafkaNode | KPyBrokerNode] = {}
        self.become(kind)

    @property
    def kind(self) -> str:
        """The kind of all nodes, or "mixed"."""
        kinds = {node.name for node in self.nodes.values()}
        return kinds.pop() if len(kinds) == 1 else "mixed"

    def become(self, kind: str, *node_ids: int) -> None:
        """Change the kind of these nodes, or of all, with the same directories and ports. None of them may run."""
        changing = [seat for seat in self.seats if not node_ids or seat.node_id in node_ids]
        assert not any(self.nodes[at.node_id].running for at in changing if at.node_id in self.nodes), "still running"
        for seat in changing:
            where = self.directory / str(seat.node_id)
            settings = self._settings(kind, seat, where / "data")
            if kind == "kafka":
                self.nodes[seat.node_id] = KafkaNode(seat, where, settings, self._heap, self._jvm)
            else:
                self.nodes[seat.node_id] = KPyBrokerNode(seat, where, settings)
            self.nodes[seat.node_id].secured = self.secured

    def add_broker(self, kind: str) -> int:
        """Add a broker of this kind, which is not a voter, with the next id and no directory yet. Returns its id; it is
        not started."""
        seat = _seat(max(seat.node_id for seat in self.seats if seat.node_id < FIRST_CONTROLLER) + 1, apart=True)
        self.seats.append(seat)
        self.told |= {(at.node_id, at.name): self._tell(at) for at in seat.listeners}
        self.become(kind, seat.node_id)
        return seat.node_id

    def change_role(self, node_id: int, *, is_broker: bool) -> None:
        """Take the role of a broker from a combined node, which remains a voter, or give it back. The node may not
        run."""
        at = next(number for number, seat in enumerate(self.seats) if seat.node_id == node_id)
        self.seats[at] = self.seats[at]._replace(is_broker=is_broker)
        self.become(self.nodes[node_id].name, node_id)

    def _settings(self, kind: str, seat: Seat, data: Path) -> dict[str, str]:
        voters = [(one.node_id, self.told[one.node_id, CONTROLLER]) for one in self.seats if one.is_controller]
        roles = [role for role, has in (("broker", seat.is_broker), ("controller", seat.is_controller)) if has]
        settings = {
            "process.roles": ",".join(roles),
            "node.id": str(seat.node_id),
            "listeners": ",".join(f"{self._named(at.name)}://127.0.0.1:{at.port}" for at in seat.listeners),
            "controller.listener.names": CONTROLLER,
            "log.dirs": str(data),
            **LARGE,
        }
        if self._grows:
            settings["controller.quorum.bootstrap.servers"] = ",".join(f"127.0.0.1:{port}" for _, port in voters)
            settings[FIRST_VOTERS] = "standalone" if seat.node_id == voters[0][0] else "none"
        else:
            settings["controller.quorum.voters"] = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in voters)
        if seat.is_broker:
            settings["advertised.listeners"] = f"{self._named(CLIENTS)}://127.0.0.1:{self.told[seat.node_id, CLIENTS]}"
        if self.secured is not None:
            settings |= self.secured.settings(seat.node_id)
        settings |= LARGE_KAFKA if kind == "kafka" else {"kpybroker.cluster.id": CLUSTER_ID}
        return settings | self._given

    def _named(self, name: str) -> str:
        return self.secured.listener if self.secured is not None and name == CLIENTS else name

    # ---- all nodes

    def start(self) -> Self:
        """Start every node that is not running, and wait until all nodes respond. Raises NotStarted."""
        started = [node for node in self.nodes.values() if not node.running]
        for node in started:
            node.spawn()
        for node in started:
            node.await_ready()
        return self

    def stop(self) -> list[int]:
        """Send SIGTERM to all nodes. Returns their exit codes; -9 for nodes that had to be killed."""
        running = [node for node in self.nodes.values() if node.running]
        for node in running:
            node.resume()
            node.terminate()
        return [node.await_end() for node in running]

    def kill9(self) -> None:
        """Send SIGKILL to every node."""
        for node in self.nodes.values():
            node.kill9()

    def remove(self) -> None:
        """Delete the directory, unless it belongs to the caller."""
        if self._own:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except NotStarted:
            self.kill9()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop() if error is None else self.kill9()
        if error is None:
            self.remove()

    # ---- roles

    @property
    def brokers(self) -> list[KafkaNode | KPyBrokerNode]:
        return [node for node in self.nodes.values() if node.seat.is_broker]

    @property
    def controllers(self) -> list[KafkaNode | KPyBrokerNode]:
        return [node for node in self.nodes.values() if node.seat.is_controller]

    @property
    def bootstrap(self) -> str:
        """The advertised addresses of all brokers."""
        return ",".join(f"127.0.0.1:{self.told[node.node_id, CLIENTS]}" for node in self.brokers)

    def tool(self, name: str, *args: str, stdin: str = "") -> Ran:
        """Run one of Kafka's tools against the cluster, which must not be secured."""
        return tool(name, *args, bootstrap=self.bootstrap, stdin=stdin)

    def active_controller(self) -> int:
        """The leader of the quorum according to most nodes that respond; -1 if no node knows a leader."""
        told = [leader for leader in self._each(Conversation.active_controller) if leader >= 0]
        return max(sorted(set(told)), key=told.count, default=-1)

    def partitions(self, *topics: str) -> dict[tuple[str, int], Any]:
        """(topic, partition) -> its row of Metadata with the newest leader epoch that any broker returns."""
        newest: dict[tuple[str, int], Any] = {}
        for told in self._each(lambda node: node.partitions_of(list(topics))):
            for place, row in told.items():
                if place not in newest or row.leader_epoch >= newest[place].leader_epoch:
                    newest[place] = row
        return newest

    def leader_of(self, topic: str, partition: int) -> int:
        """The partition's leader; -1 if there is none."""
        row = self.partitions(topic).get((topic, partition))
        return -1 if row is None else int(row.leader_id)

    def await_in_sync(self, *topics: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until every replica of these topics is in sync according to every broker. Raises TimeoutError."""
        deadline = time.monotonic() + patience_s
        while True:
            told = self._each(lambda node: node.partitions_of(list(topics)))
            if len(told) == len(self.brokers) and all(_in_sync(one.values()) for one in told):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.kind}: not all replicas of {topics} got in sync within {patience_s:.0f} s")
            time.sleep(0.01)

    def await_voters(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until every voter has all metadata that the leader of the quorum has now. Raises TimeoutError."""
        deadline = time.monotonic() + patience_s
        goal, ends = 0, [-1]
        while not goal or min(ends) < goal:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.kind}: the voters' logs end at {ends} after {patience_s:.0f} s")
            told = next(filter(None, self._each(Conversation.voter_ends)), None)
            if told is not None:
                ends = list(told.values())
                goal = goal or max(ends)
            time.sleep(0.05)

    def _each(self, asked: Callable[[Conversation], Any]) -> list[Any]:
        """The responses of the running brokers; brokers without a response are omitted."""
        door = None if self.secured is None else self.secured.door()
        found = []
        for node in self.brokers:
            if node.running:
                with contextlib.suppress(OSError), contextlib.closing(Conversation(node.address, door=door)) as told:
                    found.append(asked(told))
        return found


def _seat(node_id: int, apart: bool) -> Seat:
    is_broker = node_id < FIRST_CONTROLLER
    is_controller = not (is_broker and apart)
    return Seat(
        node_id, is_broker, is_controller, steady_port() if is_broker else 0, steady_port() if is_controller else 0
    )


def _in_sync(rows: Iterable[Any]) -> bool:
    rows = list(rows)
    return bool(rows) and all(row.leader_id >= 0 and len(row.isr_nodes) == len(row.replica_nodes) for row in rows)
