"""Three real replicas with a model of the controller and the network, in which any message may be delayed or lost.

Partition, Followers, Log, the handler of followers' fetches and the code with which followers apply responses are real.
Time, messages, and a controller that decides like the real one are modelled.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from kpybroker.call import Call
from kpybroker.config import BrokerConfig, LogSettings, parse_config
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.quotas.clients import ClientQuotas
from kpybroker.replication.follower.follower_log import FetchPosition, begin_at, cut, position_of, take
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.replica_rules import ReplicaRules
from kpybroker.replication.partition.sessions import FetchSessions
from kpybroker.serving.fetch.replica import fetch_replica
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import encode_batch, read_records, split
from kpybroker.wire.rpc import fetch
from kpybroker.world.real import RealWorld
from tests.replication.leading import Host
from tests.replication.model_controller import NODES, Controller, Proposal

TOPIC_ID = bytes(15) + b"\1"
FETCH = Call(1, 17, "follower", "127.0.0.1", 1)
LAG_MS = 1000
CONFIG = parse_config({})
SETTINGS = replace(LogSettings(), segment_bytes=700, index_interval_bytes=100)


class Asked(NamedTuple):
    """A Fetch in transit to a leader."""

    sender: int
    to: int
    life: int
    place: FetchPosition
    request: fetch.Request


class Told(NamedTuple):
    """A response to a Fetch, in transit."""

    asked: Asked
    row: Any


@dataclass
class Sent:
    """A Produce with acks=all. `settle` is called like that of a real reply."""

    partition: Partition
    end: int
    value: bytes
    acknowledged: bool = False
    over: bool = False

    def settle(self) -> None:
        if self.over:
            return
        if self.partition.log.high_watermark >= self.end:
            self.acknowledged = self.over = True
        elif self.partition.refusal is not None:
            self.over = True

    def __hash__(self) -> int:
        return id(self)


@dataclass
class Node:
    """A broker with one partition, and only the parts that a Fetch needs."""

    node_id: int
    host: Host
    partition: Partition
    life: int
    known: int = 0
    """The number of the controller's decisions that the node has applied."""
    config: BrokerConfig = CONFIG
    quotas: ClientQuotas = field(default_factory=lambda: ClientQuotas(CONFIG, lambda: 0))
    sessions: FetchSessions = field(default_factory=lambda: FetchSessions(Random(1), 10, lambda: 0))

    @property
    def metadata(self) -> Node:
        return self

    replication = metadata

    @property
    def hosting(self) -> Hosting:
        return self.host.hosting

    def topic_name(self, topic_id: bytes) -> str | None:
        return "t" if topic_id == TOPIC_ID else None

    def leader_of(self, name: str, index: int, listener: str) -> None:
        return None


@dataclass
class Model:
    """One run. `step` takes a random step, and `finish` completes the replication."""

    world: RealWorld
    root: Path
    random: Random
    min_isr: int = 1
    now_ms: int = 0
    controller: Controller = field(default_factory=Controller)
    nodes: dict[int, Node] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    latest: dict[int, list[int]] = field(default_factory=dict)
    """Leader epoch -> the responses to ListOffsets for the latest offset, in order."""
    lives: int = 0
    checkpoints: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node_id in NODES:
            self.start(node_id)

    # ---- nodes

    def start(self, node_id: int) -> None:
        settings = replace(SETTINGS, min_insync_replicas=self.min_isr)
        storage = Log.open(self.world, str(self.root / f"{node_id}"), "t", 0, settings, clean=False)
        storage.high_watermark = max(storage.start, min(self.checkpoints.get(node_id, 0), storage.end))
        storage.last_stable = storage.high_watermark
        rules = ReplicaRules(node_id, lag_max_ms=LAG_MS, now_ms=lambda: self.now_ms, may_join=self.controller.may_join)
        host = Host(rules, lambda partition: self.send_proposal(node_id, partition))
        self.lives += 1
        self.nodes[node_id] = Node(node_id, host, host.host("t", TOPIC_ID, 0, storage), self.lives)
        # the node has applied every decision from before its registration
        self.nodes[node_id].known = len(self.controller.images) - 1
        self.hear(self.nodes[node_id])

    def hear(self, node: Node) -> None:
        if node.known < len(self.controller.images):
            node.partition.become(self.controller.images[node.known])
            node.known += 1
            node.host.flush()

    def crash(self, node_id: int) -> None:
        """End the process. Written data is kept."""
        node = self.nodes.pop(node_id)
        if self.random.random() < 0.5:
            self.checkpoints[node_id] = node.partition.log.high_watermark
        for sent in self.sent:
            sent.over = sent.over or sent.partition is node.partition
        node.partition.log.drop_files()
        self.controller.gone(node_id)

    # ---- messages

    def send_proposal(self, node_id: int, partition: Partition) -> None:
        followers = partition.followers
        assert followers is not None
        assert followers.proposed is not None
        known = {follower.node_id: follower.broker_epoch for follower in followers.by_id.values()}
        epochs = {**self.controller.epochs, **{member: epoch for member, epoch in known.items() if epoch >= 0}}
        isr = tuple((member, epochs[member]) for member in followers.proposed)
        self.proposals.append(Proposal(node_id, partition.leader_epoch, partition.partition_epoch, isr))

    def take_proposal(self, proposal: Proposal) -> None:
        code = self.controller.propose(proposal)
        node = self.nodes.get(proposal.node_id)
        if node is None or node.partition.followers is None or self.random.random() < 0.3:  # the response is lost
            return
        same = node.partition.partition_epoch == proposal.partition_epoch
        if code == ErrorCode.INELIGIBLE_REPLICA and same:
            node.partition.followers.withdraw()

    def ask(self, node: Node) -> None:
        partition = node.partition
        if partition.leads or partition.leader_id not in self.nodes:
            return
        place = position_of(partition)
        wanted = fetch.FetchPartition(
            partition=0,
            current_leader_epoch=place.leader_epoch,
            fetch_offset=place.offset,
            last_fetched_epoch=place.last_epoch,
            log_start_offset=partition.log.start,
            partition_max_bytes=self.random.choice((1, 150, 1000)),
        )
        state = fetch.ReplicaState(replica_id=node.node_id, replica_epoch=self.controller.epochs[node.node_id])
        request = fetch.Request(
            replica_state=state,
            min_bytes=1,
            max_bytes=10_000,
            topics=[fetch.FetchTopic(topic_id=TOPIC_ID, partitions=[wanted])],
        )
        self.asked.append(Asked(node.node_id, partition.leader_id, node.life, place, request))

    def serve(self, asked: Asked) -> None:
        leader = self.nodes.get(asked.to)
        if leader is None:
            return
        response = fetch_replica(leader, FETCH, asked.request, asked.sender)  # type: ignore[arg-type]
        leader.host.flush()
        row: Any = response.responses[0].partitions[0]  # type: ignore[union-attr]
        row.records = self.cut(bytes(row.records or b""))
        self.told.append(Told(asked, row))

    def cut(self, records: bytes) -> bytes:
        """Cut the last of several batches at times, as a leader of Apache Kafka does at the limit of bytes."""
        batches = split(records) if records else []
        if len(batches) < 2 or self.random.random() < 0.8:
            return records
        return records[: -self.random.randint(1, batches[-1].size_bytes)]

    def answer(self, told: Told) -> None:
        node = self.nodes.get(told.asked.sender)
        if node is None or node.life != told.asked.life:
            return
        try:
            take(node.partition, told.asked.place, told.row)
        except KafkaError as refusal:
            if refusal.code == ErrorCode.CORRUPT_MESSAGE:
                raise  # no bytes are damaged in this model
            if refusal.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.find_the_way(node, told.asked.place)

    def find_the_way(self, node: Node, place: FetchPosition) -> None:
        leader = self.nodes.get(node.partition.leader_id)
        if leader is None or not leader.partition.leads or leader.partition.leader_epoch != place.leader_epoch:
            return
        if place != position_of(node.partition):
            return
        if leader.partition.committable_end < place.offset:
            cut(node.partition, leader.partition.committable_end)
        elif leader.partition.log.start > place.offset:
            begin_at(node.partition, leader.partition.log.start)

    # ---- clients

    def produce(self, node: Node) -> None:
        partition = node.partition
        value = b"%d:%d" % (len(self.sent), node.node_id)
        try:
            if not partition.leads:
                return
            partition.require_in_sync(self.min_isr)
            batch = encode_batch([(None, value)] * self.random.randint(1, 3), timestamp_ms=1)
            appended = partition.append(split(batch), self.now_ms)
        except KafkaError:
            return
        sent = Sent(partition, appended.last_offset + 1, value)
        self.sent.append(sent)
        partition.when_committed(sent.end, sent)
        node.host.flush()

    def look(self, node: Node) -> None:
        """Note the response to a ListOffsets for the latest offset (KIP-207)."""
        partition = node.partition
        if partition.leads and partition.log.high_watermark >= partition.epoch_start:
            self.latest.setdefault(partition.leader_epoch, []).append(partition.log.high_watermark)

    # ---- schedules

    def step(self) -> None:
        random = self.random
        choice = random.random()
        self.now_ms += random.choice((0, 1, 50, 400))
        node = self.nodes[random.choice(sorted(self.nodes))] if self.nodes else None
        if choice < 0.2 and node is not None:
            self.produce(node)
        elif choice < 0.42 and node is not None:
            self.ask(node)
        elif choice < 0.8:
            self.deliver()
        elif choice < 0.86 and node is not None:
            self.hear(node)
        elif choice < 0.9 and node is not None:
            node.partition.drop_lagging()
            node.host.flush()
        elif choice < 0.95 and node is not None:
            self.look(node)
        else:
            self.disturb(node)

    def deliver(self) -> None:
        queues: list[list[Any]] = [queue for queue in (self.asked, self.told, self.proposals) if queue]
        if not queues:
            return
        queue = self.random.choice(queues)
        message = queue.pop(self.random.randrange(len(queue)) if self.random.random() < 0.3 else 0)
        if self.random.random() < 0.1:
            return  # lost
        if isinstance(message, Asked):
            self.serve(message)
        elif isinstance(message, Told):
            self.answer(message)
        else:
            self.take_proposal(message)

    def disturb(self, node: Node | None) -> None:
        """Change the leader, or kill or restart a node."""
        kind = self.random.random()
        now = self.controller.now
        if kind < 0.4:
            able = [member for member in now.isr if self.controller.live[member]]
            if able:
                self.controller.decide(self.random.choice(able), now.isr, reign=True)
        elif kind < 0.6 and node is not None:
            self.crash(node.node_id)
        else:
            for node_id in NODES:
                if node_id not in self.nodes:
                    self.controller.back(node_id)
                    self.start(node_id)
                    break

    def finish(self) -> Node:
        """Restart every node that is down and deliver every message, until all replicas are in sync."""
        for node_id in NODES:
            if node_id not in self.nodes:
                self.controller.back(node_id)
                self.start(node_id)
        for _ in range(400):
            for node in self.nodes.values():
                while node.known < len(self.controller.images):
                    self.hear(node)
                node.partition.drop_lagging()
                followers = node.partition.followers
                if node.partition.leads and followers is not None and followers.proposed is not None:
                    # repeated until the metadata contains the result
                    self.send_proposal(node.node_id, node.partition)
                self.ask(node)
            messages: deque[Any] = deque((*self.proposals, *self.told, *self.asked))
            self.asked, self.told, self.proposals = [], [], []
            for message in messages:
                if isinstance(message, Asked):
                    self.serve(message)
                elif isinstance(message, Told):
                    self.answer(message)
                else:
                    self.take_proposal(message)
            self.now_ms += 10
            ends = {node.partition.log.end for node in self.nodes.values()}
            leader = self.nodes[self.controller.now.leader]
            if len(ends) == 1 and set(self.controller.now.isr) == set(NODES) and not self.behind(leader):
                return leader
        states = [(node.partition, node.partition.followers and node.partition.isr) for node in self.nodes.values()]
        raise AssertionError(f"the replicas are not in sync: {self.controller.now} {states}")

    def behind(self, leader: Node) -> bool:
        return leader.partition.log.high_watermark < leader.partition.log.end

    def values(self, node: Node, upper: int | None = None) -> list[tuple[int, int, bytes]]:
        """(offset, leader epoch, value) of each record below `upper`."""
        storage = node.partition.log
        upper = storage.end if upper is None else upper
        found, offset = [], storage.start
        while offset < upper:
            for batch in split(bytes(storage.read(offset, 1 << 20, upper=upper, min_one=True) or b"")):
                offset = batch.next_offset
                found += [(r.offset, batch.leader_epoch, bytes(r.value or b"")) for r in read_records(batch)]
        return found
