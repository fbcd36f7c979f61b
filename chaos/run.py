"""A run: three nodes behind proxies under load, periods of faults with calm periods in between, and the final check."""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from chaos import company, sharing
from chaos.check import Kind, Violation, agree, repeated, violations
from chaos.company import Company, rights
from chaos.history import Fetched, Found, History, Place
from chaos.hostile import TIMEOUT_S, dial
from chaos.incarnations import Incarnations
from chaos.java import JavaLoad
from chaos.librdkafka import QUICK, Member, Production, Settings, key_in, read_all
from chaos.links import Links
from chaos.logged import logged_errors
from chaos.nemesis import Nemesis
from chaos.probe import PARTITIONS as PROBED
from chaos.probe import SILENCE_S, Probe
from chaos.probe import TOPIC as PROBE
from chaos.slow_disks import SlowDisks
from chaos.trials import SPARE
from chaos.watch import Watch
from oracle.asking import Conversation, Door
from oracle.cluster import CLIENTS, Cluster
from oracle.kafka import QUICK_JVM
from oracle.takeover import EXIT_CODES, KAFKA, KPYBROKER

TOPIC, PARTITIONS = "chaos", 6
GROUP, JAVA_GROUP, READER_GROUP = "librdkafka", "java", "reader"
MIXED = "mixed"
KAFKA_NODES = 2
"""How many nodes of a mixed cluster are Apache Kafka."""
HEAP = "1536m"
"""Apache Kafka allocates what a frame announces, and hostile clients announce up to 960 MB at a time (3 faults of 8
clients with 40 MB each)."""
PER_SECOND = 500.0
SHORT_S = 25.0
"""The length of one period of faults."""
FEW_FILES = {"kpybroker.max.open.files": "48"}
"""The limit of open segments when file descriptors are limited."""
PATIENCE_S = 120.0
"""How long the cluster may take to recover, and clients to complete their requests."""
SETTINGS = {
    "log.segment.bytes": "1048576",
    "log.retention.ms": "-1",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "auto.create.topics.enable": "false",
    "initial.broker.registration.timeout.ms": "900000",
}


@dataclass
class Report:
    """The result of a run."""

    acknowledged: int = 0
    read: int = 0
    counted: dict[str, int] = field(default_factory=dict)
    longest_recovery_s: float = 0.0
    longest_silence_s: float = 0.0
    """The longest wait for acks=all while a majority was healthy, also with hostile clients or a slow disk."""
    longest_in_trouble_s: float = 0.0
    """The same while nodes were killed, stopped or cut off."""
    shared: int = 0
    """Records that the share group accepted."""
    latest_answers: int = 0
    repeated: int = 0
    decisions: int = 0
    """The number of responses to the spare user, who is denied at times."""
    guesses: int = 0
    """The number of responses to logins with the guest's passwords, which are valid at times."""
    changes: int = 0
    """Changes of rights and passwords that were made."""
    falls: int = 0
    """Fatal errors of librdkafka after a sequence number was refused by Apache Kafka."""
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Errors that the nodes have logged, by kind of node and text. They are no violations."""
    violations: list[Violation] = field(default_factory=list)


class Run:
    """One run. `play` executes the whole run; `told` is called with a line for each event."""

    def __init__(
        self,
        kind: str,
        seed: int,
        directory: Path,
        told: Callable[[str], None],
        controllers: int = 0,
        descriptors: int = 0,
        silence_max_s: float | None = SILENCE_S,
        secure: bool = False,
        kafka_nodes: int = KAFKA_NODES,
    ) -> None:
        """kind: KPYBROKER, KAFKA or MIXED. descriptors: the limit of open files of each kpybroker node, because a JVM
        needs more; 0 for the limit of this process. silence_max_s: how long acks=all may wait while a majority is
        healthy; None for no limit. secure: with TLS, logins and ACLs. kafka_nodes: how many brokers of a mixed cluster
        are Apache Kafka, and how many of the separate controllers."""
        self._told = told
        self._seed = seed
        self._secured = company.secured(directory / "secured") if secure else None
        self._silence_max_s = silence_max_s
        self.history = History(on_incident=lambda text: told(f"INCIDENT {text}"))
        self.links = Links()
        self._descriptors = descriptors
        self.cluster = Cluster(
            KPYBROKER if kind == KPYBROKER else KAFKA,
            controllers=controllers,
            directory=directory,
            properties=SETTINGS | (FEW_FILES if descriptors else {}),
            told=self.links.told,
            secured=self._secured,
            heap=HEAP,
            jvm=QUICK_JVM,
        )
        self._replaced = replaced(self.cluster, kafka_nodes, seed) if kind == MIXED else []
        self.disks = SlowDisks(directory)
        if not self.disks.is_available:
            told("no slow disks: there is no C compiler")
        self.places = [Place(TOPIC, partition) for partition in range(PARTITIONS)]
        self.nemesis = Nemesis(
            self.cluster, self.links, self.history, self.places, seed, told, self.disks, self._dial_as_hostile
        )
        self._company = None
        if self._secured is not None:
            self._company = Company(self.cluster, self._secured, self.history, self.nemesis)
        self.report = Report()

    @property
    def kinds(self) -> dict[int, str]:
        """Node id -> the kind of the node under load."""
        nodes = self.cluster.nodes
        return {node_id: KPYBROKER if node_id in self._replaced else node.name for node_id, node in nodes.items()}

    def play(self, for_s: float) -> Report:
        """Inject faults for about `for_s` seconds, then check. Raises NotStarted."""
        try:
            self._start()
            end = time.monotonic() + for_s
            is_mild = False
            while (left_s := end - time.monotonic()) > 0:
                if not is_mild:
                    self._probe.rest()
                self.nemesis.trouble(min(SHORT_S, left_s), is_mild=is_mild)
                self._calm()
                self._probe.watch()
                is_mild = not is_mild
            self._finish()
        finally:
            self.cluster.kill9()
            self.links.close()
        return self.report

    # ---- start

    def _start(self) -> None:
        self._start_nodes()
        bootstrap = self.cluster.bootstrap
        admin = self._admin()
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)], operation_timeout=30)[TOPIC].result(60)
        admin.create_topics([NewTopic(PROBE, PROBED, 3)], operation_timeout=30)[PROBE].result(60)
        if self._secured is None:
            admin.create_topics([NewTopic(sharing.TOPIC, sharing.PARTITIONS, 3)])[sharing.TOPIC].result(60)
        self.cluster.await_in_sync(TOPIC, PROBE)
        if self._company is not None:
            admin.create_topics([NewTopic(SPARE, 1, 3)], operation_timeout=30)[SPARE].result(60)
            groups = {GROUP: company.READER, READER_GROUP: company.READER, JAVA_GROUP: company.JAVA}
            self._company.start(rights(TOPIC, PROBE, groups), self._seed)
        writer, reader = self._client(company.WRITER), self._client(company.READER)
        self._producers = [
            Production(self.history, bootstrap, self.places, number, PER_SECOND, writer) for number in (1, 2)
        ]
        log = self.cluster.directory / "java.log"
        java = None if self._secured is None else self._secured.java(company.JAVA)
        self._java = JavaLoad(self.history, bootstrap, self.places, 3, PER_SECOND, JAVA_GROUP, log, java)
        self._probe = Probe(self.history, bootstrap, self._silence_max_s, writer)
        self._members = [Member(self.history, bootstrap, TOPIC, GROUP, f"librdkafka {n}", reader) for n in (1, 2)]
        addresses = {
            node.node_id: ("127.0.0.1", self.cluster.told[node.node_id, CLIENTS]) for node in self.cluster.brokers
        }
        self._sharing = None
        if self._secured is None:  # its users would need more rights
            self._sharing = sharing.ShareLoad(self.history, bootstrap, next(iter(addresses.values())), {})
        self._probe.watch()
        # A leader accepts any first sequence of a producer that it does not know, as Apache Kafka does. If it refused
        # earlier in-flight batches because it was not elected yet, the Java client repeats them forever.
        everything = [(place, number) for place in self.places for number in (1, 2, 3)]
        self._until(lambda: self.history.has_acknowledged(everything), "not every producer has written")
        self._watch = Watch(self.history, addresses, self.places, self._door(company.OBSERVER))

    def _start_nodes(self) -> None:
        for node in self.cluster.nodes.values():
            node.prepare()
        if self._replaced:  # on directories that Apache Kafka has formatted: the features are at its levels
            self.cluster.become(KPYBROKER, *self._replaced)
        for node in self.cluster.nodes.values():
            node.added_environment = self.disks.environment(node.node_id, node.data)
            node.descriptors = self._descriptors if node.name == KPYBROKER else 0
            node.spawn()
            self.links.up(node.node_id, node.pid)
        for node in self.cluster.nodes.values():
            node.await_ready()

    def _admin(self, user: str | None = None) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.cluster.bootstrap, **QUICK, **self._client(user)})

    def _client(self, user: str | None) -> Settings:
        """The client settings to log in as this user (ROOT if none is given); empty if the cluster is not secured."""
        if self._secured is None:
            return {}
        return self._secured.librdkafka() if user is None else self._secured.librdkafka(user)

    def _door(self, user: str) -> Door | None:
        return None if self._secured is None else self._secured.door(user)

    def _dial_as_hostile(self, address: tuple[str, int]) -> socket.socket:
        door = self._door(company.HOSTILE)
        return dial(address) if door is None else Conversation(address, TIMEOUT_S, door).socket

    # ---- calm

    def _calm(self) -> None:
        """Check that, without faults, all replicas come into sync, all producers make progress, and commits are
        unchanged."""
        began_s = time.monotonic()
        if not self._until(self.nemesis.is_whole, "not all replicas came into sync"):
            return
        if self._company is not None:
            self._until(self._company.shows_new_certificates, "not all nodes present their new certificate")
        recovered_s = time.monotonic() - began_s
        self.report.longest_recovery_s = max(self.report.longest_recovery_s, recovered_s)
        producers: list[Production | JavaLoad] = [*self._producers, self._java]
        for number, producer in enumerate(producers, 1):
            self._until(_acknowledged_since(producer, began_s), f"producer {number} makes no progress")
        self._fetch_commits()
        self._told(f"calm after {recovered_s:.1f} s, {self.history.acknowledged} acknowledged")

    def _until(self, holds: Callable[[], bool], otherwise: str) -> bool:
        left_s, before_s = PATIENCE_S, time.monotonic()
        while not holds():
            now_s = time.monotonic()
            left_s -= min(now_s - before_s, 1.0)  # the time during which the machine was suspended does not count
            before_s = now_s
            if left_s < 0:
                self.history.incident(f"{otherwise} within {PATIENCE_S} s after the last fault")
                return False
            self.nemesis.look()
            time.sleep(0.05)
        return True

    def _fetch_commits(self) -> None:
        """Fetch the commits with a new client: librdkafka 2.10 and later drops brokers that are missing in Metadata for
        a while, and requests to them then wait forever."""
        admin = self._admin(company.OBSERVER)
        for group in (GROUP, JAVA_GROUP):
            asked = [TopicPartition(*place) for place in self.places]
            deadline = time.monotonic() + PATIENCE_S
            while True:
                began_s = time.monotonic()
                try:
                    wanted = [ConsumerGroupTopicPartitions(group, asked)]
                    response = admin.list_consumer_group_offsets(wanted, request_timeout=5)[group].result(10)
                    break
                except KafkaException as refused:
                    if time.monotonic() > deadline:
                        self.history.incident(f"the commits of {group} cannot be fetched: {refused}")
                        return
                    time.sleep(0.2)
            for one in response.topic_partitions:
                fetched = Fetched(began_s, max(one.offset, -1))
                self.history.fetched.setdefault((group, Place(one.topic, one.partition)), []).append(fetched)

    # ---- final check

    def _finish(self) -> None:
        for producer in (*self._producers, self._java):
            producer.stop()
        for producer in (*self._producers, self._java):
            producer.finish(PATIENCE_S)
        time.sleep(1.0)
        for member in self._members:
            member.finish()
        self._java.close()
        self._watch.finish()
        self._probe.finish()
        if self._company is not None:
            self._company.finish()
            self.report.changes = self._company.changes.made
        self._until(self.nemesis.is_whole, "not all replicas came into sync")
        self._fetch_commits()
        if self._sharing is not None:
            self._told("sharing what is left")
            self._sharing.finish(PATIENCE_S)
            self.report.shared = sum(map(len, self.history.shared.accepted.values()))
        self._told("reading all records")
        found = self._read_everything() + self._compare_logs()
        self.report.falls, fallen = of_falls(self.history.falls, self.kinds)
        self.report.violations = found + fallen + violations(self.history)
        self.report.errors = logged_errors(self.cluster.nodes.values())
        self.report.repeated = repeated(self.history)
        self.report.acknowledged = self.history.acknowledged
        self.report.read = sum(len(one) for one in self.history.reads.values())
        self.report.latest_answers = self._watch.answers
        self.report.longest_silence_s = self._probe.longest_s
        self.report.longest_in_trouble_s = self._probe.longest_in_trouble_s
        self.report.counted = dict(self.nemesis.counted)
        self.report.decisions = len(self.history.rights.decisions)
        self.report.guesses = len(self.history.passwords.decisions)

    def _read_everything(self) -> list[Violation]:
        for place in self.places:
            latest = [row.offset for row in self.history.latest.get(place, [])]
            acked = [max(offsets) for (at, _), offsets in self.history.acked.items() if at == place and len(offsets)]
            end = max([*latest, *(offset + 1 for offset in acked)], default=0)
            try:
                settings = self._client(company.READER)
                rows = read_all(self.cluster.bootstrap, place, 0, end, PATIENCE_S, READER_GROUP, settings)
            except TimeoutError as late:
                return [Violation(Kind.LOST, str(late))]
            final = self.history.final[place] = Found()
            for offset, value in rows:
                final.add(offset, key_in(value))
        return []

    def _compare_logs(self) -> list[Violation]:
        kinds = [node.name for node in self.cluster.nodes.values() if node.running]
        ended = zip(kinds, self.cluster.stop(), strict=True)
        found = [
            Violation(Kind.INCIDENT, f"a node of {kind} stopped with {code}")
            for kind, code in ended
            if code != EXIT_CODES[kind]
        ]
        for place in self.places:
            replicas = {}
            for node in self.cluster.brokers:
                files = sorted((node.data / f"{place.topic}-{place.partition}").glob("*.log"))
                replicas[node.node_id] = b"".join(file.read_bytes() for file in files)
            found += [Violation(Kind.CHANGED, text) for text in agree(place, replicas)]
            self.history.incarnations[place] = Incarnations.of_log(next(iter(replicas.values())))
        return found


def of_falls(falls: Sequence[str], kinds: Mapping[int, str]) -> tuple[int, list[Violation]]:
    """The number of fatal errors that Apache Kafka explains, and violations for the others.

    It keeps the last batch of each producer in a snapshot. After a start from one, it takes an earlier batch that the
    client sends again for one that is out of order, and librdkafka gives up.
    """
    found = []
    for text in falls:
        told = re.search(r"sequence desynchronization with broker (\d+)", text)
        if told is None or kinds.get(int(told[1])) != KAFKA:
            found.append(Violation(Kind.INCIDENT, text))
    return len(falls) - len(found), found


def replaced(cluster: Cluster, kafka_nodes: int, seed: int) -> list[int]:
    """Draw the nodes that become kpybroker: all but `kafka_nodes` of the brokers, and of the separate
    controllers."""
    random = Random(seed)
    separate = [node for node in cluster.controllers if not node.seat.is_broker]
    drawn = [random.sample(nodes, max(len(nodes) - kafka_nodes, 0)) for nodes in (cluster.brokers, separate)]
    return [node.node_id for nodes in drawn for node in nodes]


def _acknowledged_since(producer: Production | JavaLoad, began_s: float) -> Callable[[], bool]:
    return lambda: producer.last_ack_s > began_s


def not_done(report: Report, minimum: dict[str, int]) -> list[str]:
    """Return the minimums that a run has not reached."""
    reached = {**report.counted, "acknowledged": report.acknowledged}
    return [
        f"{reached.get(what, 0)} {what} of {least}" for what, least in minimum.items() if reached.get(what, 0) < least
    ]
