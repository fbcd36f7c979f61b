"""Records conversations of Apache Kafka's nodes: `python -m oracle.conversations` writes tests/golden/conversations.

Each file is a scene: the settings of the nodes, and every request that one of them or a client sent to another, with
its response, in order. `tests/conversations` puts kpybroker in the place of each node. `--only NAME` records one scene.
Ids, ports and the course of elections differ from one recording to the next.
"""

import argparse
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kpybroker.storage.dirs.formatting import decode_id
from kpybroker.wire.api import by_name
from kpybroker.wire.rpc import (
    add_raft_voter,
    create_topics,
    describe_quorum,
    init_producer_id,
    produce,
    remove_raft_voter,
)
from oracle.asking import Conversation
from oracle.cluster import CONTROLLER, KafkaNode, Seat
from oracle.kafka import CLUSTER_ID, QUICK_JVM
from oracle.requests import batch
from oracle.tape import (
    CLIENT_PORT,
    CONTROLLER_PORT,
    FIRST_CONTROLLER,
    Deed,
    Exchange,
    Tape,
    advertised,
    hidden,
    port_of,
)

SCRIPTS = Path(__file__).resolve().parent.parent / "tests" / "golden" / "conversations"
PATIENCE_S = 120.0
ANSWER_S = 30.0
SHARED = {
    "controller.listener.names": CONTROLLER,
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "metadata.max.idle.interval.ms": "0",
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    "controller.quorum.election.timeout.ms": "1500",
    "controller.quorum.fetch.timeout.ms": "3000",
}
STATIC = "controller.quorum.voters"
BOOTSTRAP = "controller.quorum.bootstrap.servers"


class StagedNode(KafkaNode):
    """A node behind the proxies of a tape."""

    @property
    def address(self) -> tuple[str, int]:
        return hidden(self.node_id), port_of(self.node_id)


class Stage:
    """The nodes of one scene. Brokers have ids below FIRST_CONTROLLER."""

    def __init__(self, directory: Path, node_ids: Sequence[int], settings: Mapping[int, Mapping[str, str]]) -> None:
        self.tape = Tape()
        self.settings = {node_id: _settings(node_id, settings.get(node_id, {})) for node_id in node_ids}
        self.nodes: dict[int, StagedNode] = {}
        for node_id in node_ids:
            is_broker = node_id < FIRST_CONTROLLER
            seat = Seat(node_id, is_broker, not is_broker, CLIENT_PORT, CONTROLLER_PORT)
            where = directory / str(node_id)
            own = {"log.dirs": str(where / "data"), **self.settings[node_id]}
            own["listeners"] = own["listeners"].replace(advertised(node_id), hidden(node_id))
            own["advertised.listeners"] = self.settings[node_id]["listeners"]
            self.nodes[node_id] = StagedNode(seat, where, own, "256m", QUICK_JVM)
            self.nodes[node_id].format_options = _format_options(self.settings[node_id], node_id)
            self.tape.proxy(node_id, port_of(node_id))

    # ---- nodes

    def start(self, *node_ids: int) -> None:
        """Start these nodes, and wait until they respond."""
        for node_id in node_ids:
            self.nodes[node_id].prepare()
            self.tape.note("start", node_id)
            self.nodes[node_id].spawn()
        for node_id in node_ids:
            self.nodes[node_id].await_ready()

    def stop(self, *node_ids: int) -> None:
        """Send SIGTERM to these nodes, and wait for their end."""
        for node_id in node_ids:
            self.tape.note("stop", node_id)
            self.nodes[node_id].stop()

    def kill(self, node_id: int) -> None:
        """Send SIGKILL to this node."""
        self.tape.note("kill", node_id)
        self.nodes[node_id].kill9()

    def directory_id(self, node_id: int) -> str:
        """The id of the node's directory."""
        text = (self.nodes[node_id].data / "meta.properties").read_text()
        return next(line.partition("=")[2] for line in text.splitlines() if line.startswith("directory.id="))

    # ---- requests

    @contextlib.contextmanager
    def aside(self, node_id: int) -> Iterator[Conversation]:
        """A connection to a node that is not recorded."""
        with contextlib.closing(Conversation(self.nodes[node_id].address, ANSWER_S)) as asked:
            yield asked

    def ask(self, node_id: int, name: str, version: int, request: Any) -> Any:
        """Send a request that is recorded."""
        with contextlib.closing(Conversation((advertised(node_id), port_of(node_id)), ANSWER_S)) as asked:
            return asked.ask(name, version, request, by_name[name].response)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until `holds()`. Errors of connections count as false. Raises TimeoutError."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                if holds():
                    return
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE_S:.0f} s until {what}")
            time.sleep(0.05)

    def leads(self, node_id: int, topic: str, *isr: int) -> Callable[[], bool]:
        """Whether this broker leads the first partition of a topic with these in-sync replicas, as it says itself."""

        def holds() -> bool:
            with self.aside(node_id) as asked:
                row = asked.partitions_of([topic]).get((topic, 0))
            return row is not None and row.leader_id == node_id and sorted(row.isr_nodes) == sorted(isr)

        return holds

    def quorum(self, node_id: int) -> Any:
        """The row of DescribeQuorum of the metadata log at this node."""
        topic = describe_quorum.TopicData(topic_name="__cluster_metadata", partitions=[describe_quorum.PartitionData()])
        with self.aside(node_id) as asked:
            told = asked.ask("DescribeQuorum", 2, describe_quorum.Request(topics=[topic]), describe_quorum.Response)
        return told.topics[0].partitions[0]

    def is_active(self, node_id: int, *caught_up: int) -> Callable[[], bool]:
        """Whether this controller is active, and these replicas have its whole log."""

        def holds() -> bool:
            row = self.quorum(node_id)
            if row.error_code or row.leader_id != node_id:
                return False
            ends = {one.replica_id: one.log_end_offset for one in (*row.current_voters, *row.observers)}
            return all(ends.get(one) == row.high_watermark == ends[node_id] for one in caught_up)

        return holds

    def produce(self, node_id: int, topic_id: bytes, first: int, count: int, acks: int = -1) -> None:
        """Append one batch to the first partition of the topic."""
        data = produce.PartitionProduceData(index=0, records=batch(first, count))
        named = produce.TopicProduceData(topic_id=topic_id, partition_data=[data])
        told = self.ask(node_id, "Produce", 13, produce.Request(acks=acks, timeout_ms=20_000, topic_data=[named]))
        assert told.responses[0].partition_responses[0].error_code == 0, told

    def settle(self, seconds: float = 1.2) -> None:
        """Let the nodes exchange what is left to say: the last high watermark, and an empty response."""
        time.sleep(seconds)


def _settings(node_id: int, more: Mapping[str, str]) -> dict[str, str]:
    is_broker = node_id < FIRST_CONTROLLER
    listener = f"PLAINTEXT://{advertised(node_id)}:{CLIENT_PORT}"
    if not is_broker:
        listener = f"{CONTROLLER}://{advertised(node_id)}:{CONTROLLER_PORT}"
    role = "broker" if is_broker else "controller"
    return {"process.roles": role, "node.id": str(node_id), "listeners": listener, **SHARED, **more}


def _format_options(settings: Mapping[str, str], node_id: int) -> tuple[str, ...]:
    if STATIC in settings:
        return ()
    return ("--standalone",) if node_id == FIRST_CONTROLLER else ("--no-initial-controllers",)


def _voters(*node_ids: int) -> str:
    return ",".join(f"{node_id}@{advertised(node_id)}:{CONTROLLER_PORT}" for node_id in node_ids)


# ---- scenes


def brokers(directory: Path) -> Stage:
    """One controller and two brokers with a topic: a follower fetches, the leader stops, and a leader is killed with
    records that its follower lacks, so that its log diverges."""
    static = {STATIC: _voters(FIRST_CONTROLLER)}
    stage = Stage(directory, (101, 1, 2), dict.fromkeys((101, 1, 2), static))
    tape = stage.tape
    stage.start(101)
    stage.until(stage.is_active(101), "101 is the active controller")
    stage.start(1)
    stage.start(2)
    stage.until(stage.is_active(101, 1, 2), "both brokers have the metadata")
    topic_id = _create(stage, "t", 1, 2)
    stage.until(stage.leads(1, "t", 1, 2), "1 leads")
    stage.produce(1, topic_id, 0, 1)
    stage.produce(1, topic_id, 1, 3)
    stage.ask(1, "InitProducerId", 5, init_producer_id.Request(transactional_id=None))
    stage.produce(1, topic_id, 4, 2, acks=1)
    stage.settle()
    stage.stop(1)
    stage.until(stage.leads(2, "t", 2), "2 leads alone")
    stage.produce(2, topic_id, 6, 2)
    stage.start(1)
    stage.until(stage.leads(2, "t", 1, 2), "1 is in sync again")
    stage.produce(2, topic_id, 8, 1)
    stage.settle()
    tape.hold(lambda exchange: exchange.source == 1 and exchange.to == 2 and exchange.api == "Fetch")
    stage.settle()
    stage.produce(2, topic_id, 9, 2, acks=1)
    stage.kill(2)
    tape.release()
    stage.until(stage.leads(1, "t", 1), "1 leads alone")
    stage.produce(1, topic_id, 20, 1)
    stage.produce(1, topic_id, 21, 1)
    stage.start(2)
    stage.until(stage.leads(1, "t", 1, 2), "2 is in sync again")
    stage.produce(1, topic_id, 22, 2)
    stage.settle()
    stage.stop(2)
    stage.settle()
    stage.stop(1)
    stage.stop(101)
    return stage


def quorum(directory: Path) -> Stage:
    """Three static voters: a leader that stops, a node that returns, and a leader that is killed."""
    static = {STATIC: _voters(101, 102, 103)}
    slower = {"controller.quorum.election.timeout.ms": "6000"}
    stage = Stage(directory, (101, 102, 103), {101: static, 102: static | slower, 103: static | slower})
    stage.start(101, 102, 103)
    stage.until(lambda: _leader(stage, 101, 102, 103) > 0, "there is a leader")
    first = _leader(stage, 101, 102, 103)
    others = [node_id for node_id in stage.nodes if node_id != first]
    stage.until(stage.is_active(first, *others), "all voters have the log")
    stage.settle()
    stage.stop(first)
    stage.until(lambda: _leader(stage, *others) not in (-1, first), "there is a second leader")
    second = _leader(stage, *others)
    (third,) = set(others) - {second}
    stage.until(stage.is_active(second, third), "the other voter follows")
    stage.start(first)
    stage.until(stage.is_active(second, third, first), "the first leader follows")
    stage.settle()
    stage.kill(second)
    left = [first, third]
    stage.until(lambda: _leader(stage, *left) not in (-1, second), "there is a third leader")
    last = _leader(stage, *left)
    (other,) = set(left) - {last}
    stage.until(stage.is_active(last, other), "the other voter follows")
    stage.start(second)
    stage.until(stage.is_active(last, other, second), "the killed node follows")
    stage.settle()
    stage.stop(other, second, last)
    return stage


def voters(directory: Path) -> Stage:
    """Voters that change (KIP-853): a controller fetches a snapshot and asks to become a voter (KIP-1186), one is added
    with another address than its own and reports that, and one is removed."""
    dynamic = {
        BOOTSTRAP: f"{advertised(101)}:{CONTROLLER_PORT}",
        "metadata.log.max.record.bytes.between.snapshots": "1",
    }
    joining = {"controller.quorum.auto.join.enable": "true"}
    stage = Stage(directory, (101, 102, 103), {101: dynamic, 102: dynamic | joining, 103: dynamic})
    stage.start(101)
    stage.until(stage.is_active(101), "101 is the active controller")
    stage.settle()
    stage.start(102)
    stage.until(lambda: len(stage.quorum(101).current_voters) == 2, "102 is a voter")
    stage.until(stage.is_active(101, 102), "102 has the log")
    stage.settle()
    stage.start(103)
    stage.until(stage.is_active(101, 102, 103), "103 has the log")
    stage.settle()
    added = add_raft_voter.Request(
        cluster_id=CLUSTER_ID,
        timeout_ms=20_000,
        voter_id=103,
        voter_directory_id=decode_id(stage.directory_id(103)),
        listeners=[add_raft_voter.Listener(name=CONTROLLER, host=hidden(103), port=CONTROLLER_PORT)],
    )
    told = stage.ask(101, "AddRaftVoter", 1, added)
    assert told.error_code == 0, told
    stage.until(lambda: len(stage.quorum(101).current_voters) == 3, "103 is a voter")
    stage.settle(5.0)
    removed = remove_raft_voter.Request(
        cluster_id=CLUSTER_ID, voter_id=102, voter_directory_id=decode_id(stage.directory_id(102))
    )
    stage.kill(102)  # it would ask to become a voter again
    told = stage.ask(101, "RemoveRaftVoter", 0, removed)
    assert told.error_code == 0, told
    stage.settle()
    stage.stop(103, 101)
    return stage


SCENES: dict[str, Callable[[Path], Stage]] = {scene.__name__: scene for scene in (brokers, quorum, voters)}


def _leader(stage: Stage, *node_ids: int) -> int:
    """The node that says that it is the active controller, or -1. The others refuse to describe the quorum."""
    for node_id in node_ids:
        with contextlib.suppress(OSError):
            row = stage.quorum(node_id)
            if row.error_code == 0 and row.leader_id == node_id:
                return node_id
    return -1


def _create(stage: Stage, name: str, *replicas: int) -> bytes:
    assigned = [create_topics.CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))]
    topic = create_topics.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assigned)
    told = stage.ask(replicas[0], "CreateTopics", 7, create_topics.Request(topics=[topic], timeout_ms=20_000))
    assert told.topics[0].error_code == 0, told
    topic_id: bytes = told.topics[0].topic_id
    return topic_id


# ---- files


def script_of(stage: Stage) -> str:
    """The text of a scene's file: its nodes, and one line for each exchange or deed."""
    nodes = {
        node_id: {"directory_id": stage.directory_id(node_id), "settings": settings}
        for node_id, settings in stage.settings.items()
    }
    lines = ",\n".join(json.dumps(entry.as_json()) for entry in spoken(stage.tape.entries))
    return f'{{"cluster_id": "{CLUSTER_ID}", "nodes": {json.dumps(nodes)}, "entries": [\n{lines}\n]}}\n'


def spoken(entries: Sequence[Exchange | Deed]) -> list[Exchange | Deed]:
    """The entries without repetitions: an exchange with the same request and response as the one before it on its
    connection says nothing new."""
    kept: list[Exchange | Deed] = []
    before: dict[tuple[int, str], Exchange] = {}
    for entry in entries:
        if isinstance(entry, Exchange):
            known = before.get((entry.connection, entry.api))
            before[entry.connection, entry.api] = entry
            if known is not None and (known.request, known.response) == (entry.request, entry.response):
                continue
        kept.append(entry)
    return kept


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the scenes with Apache Kafka, and write their files."""
    parser = argparse.ArgumentParser(prog="python -m oracle.conversations", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SCENES, help="record these scenes alone")
    parser.add_argument("--to", type=Path, default=SCRIPTS, help="the directory of the files")
    options = parser.parse_args(arguments)
    options.to.mkdir(parents=True, exist_ok=True)
    for name in options.only or SCENES:
        directory = Path(tempfile.mkdtemp(prefix=f"conversation-{name}-"))
        stage = SCENES[name](directory)
        text = script_of(stage)
        stage.tape.close()
        (options.to / f"{name}.json").write_text(text)
        print(f"{name}: {len(text.splitlines()) - 2} entries, {len(text)} bytes")
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
