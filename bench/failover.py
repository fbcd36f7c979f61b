"""Failover: the time for which clients with default settings receive no responses when a broker dies or stops, and the
time until all replicas are in sync again.

Two producers, librdkafka's and Java's, send 100 records a second with acks=all to one partition. The load measures the
longest pause between two acknowledgements of each producer. Each slice is a trial with its own topic.
"""

import signal
import subprocess
import threading
import time
from enum import Enum
from pathlib import Path
from typing import Self

from confluent_kafka import Producer

from bench.cluster import clustered
from bench.control import create_topic, delete_topic, fresh_name
from bench.measure import Better, Brokers, Case, LoadError, Measure
from bench.target import ClusterTarget, Target
from oracle.asking import active_controller, partitions_of
from oracle.cluster import Cluster
from oracle.jars import jars, java
from oracle.target import die_with_parent
from oracle.tools import compiled

SOURCE = Path(__file__).resolve().parent / "Acks.java"
PACE_S = 0.01
FLOWING_S = 1.5
AFTER_S = 0.5
PATIENCE_S = 60.0
TRIALS = 10
PARTITIONS = 3


class Flow:
    """The times of a producer's acknowledgements."""

    def __init__(self) -> None:
        self.acked_s: list[float] = []
        self.refused = ""

    def acknowledged(self) -> None:
        self.acked_s.append(time.perf_counter())

    def await_flowing(self, since_s: float) -> None:
        """Wait for an acknowledgement more than AFTER_S after this time. Raises LoadError."""
        deadline = time.monotonic() + PATIENCE_S
        while not (self.acked_s and self.acked_s[-1] > since_s):
            if self.refused or time.monotonic() > deadline:
                raise LoadError(f"a producer makes no progress: {self.refused or 'no acknowledgement'}")
            time.sleep(0.005)

    def silence_s(self, since_s: float) -> float:
        """The longest pause that ended after this time."""
        pairs = zip(self.acked_s, self.acked_s[1:], strict=False)
        return max((later - earlier for earlier, later in pairs if later > since_s), default=PATIENCE_S)


class Librdkafka(Flow):
    """A producer of confluent-kafka."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
        self._to = (topic, partition)
        self._wanted = True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.perf_counter()
        while self._wanted:
            topic, partition = self._to
            self._producer.produce(topic, b"x", partition=partition, on_delivery=self._done)
            due += PACE_S
            while (left_s := due - time.perf_counter()) > 0:
                self._producer.poll(left_s)
            due = max(due, time.perf_counter() - PACE_S)

    def _done(self, error: object, message: object) -> None:
        if error is None:
            self.acknowledged()
        else:
            self.refused = str(error)

    def close(self) -> None:
        self._wanted = False
        self._thread.join(10)
        self._producer.purge()


class Java(Flow):
    """The producer of Acks.java."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        super().__init__()
        flags = ["-Xmx128m", "-XX:+UseSerialGC", "-Dlog4j2.level=off", "-cp", f"{compiled(SOURCE)}:{jars()}/*"]
        self._process = subprocess.Popen(
            [java(), *flags, "Acks", bootstrap, topic, str(partition)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"acknowledged"):
                self.acknowledged()
            else:
                self.refused = line.decode()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(10)


class Fault(Enum):
    """The kinds of faults, with the labels of their rows."""

    LEADER = "kill -9 of a leader that is not the controller"
    CONTROLLER = "kill -9 of the controller, which is a follower"
    BOTH = "kill -9 of a leader that is the controller"
    STOP = "SIGTERM of a leader that is not the controller"


class Trial:
    """One topic, two producers, one fault."""

    def __init__(self, target: ClusterTarget, fault: Fault) -> None:
        self.target = target
        self.nodes: Cluster = target.nodes
        self.fault = fault
        self.topic = fresh_name("failover")

    def __enter__(self) -> Self:
        create_topic(self.target, self.topic, PARTITIONS)
        self.nodes.await_in_sync(self.topic)
        self.controller = self.nodes.active_controller()
        wanted = self.fault is Fault.BOTH
        rows = self.nodes.partitions(self.topic)
        self.partition = next(
            at for (_, at), row in sorted(rows.items()) if (row.leader_id == self.controller) is wanted
        )
        self.leader = int(rows[self.topic, self.partition].leader_id)
        self.victim = self.controller if self.fault is Fault.CONTROLLER else self.leader
        to = (self.target.bootstrap, self.topic, self.partition)
        self.librdkafka, self.java = Librdkafka(*to), Java(*to)
        return self

    def __exit__(self, *_: object) -> None:
        self.librdkafka.close()
        self.java.close()
        self.nodes.start()  # a trial that failed may have left a node down
        delete_topic(self.target, self.topic)

    def play(self) -> dict[str, float]:
        """Run the trial. Returns seconds, by the last part of each measure's key."""
        for flow in (self.librdkafka, self.java):
            flow.await_flowing(time.perf_counter())
        time.sleep(FLOWING_S)
        node = self.nodes.nodes[self.victim]
        began_s = time.perf_counter()
        found = {}
        if self.fault is Fault.STOP:
            node.signal(signal.SIGTERM)
            waiting = threading.Thread(target=lambda: found.update(stopped=_ended_after(node.await_end, began_s)))
            waiting.start()
        else:
            node.kill9()
        found["new"] = self._changed_after(began_s)
        for flow in (self.librdkafka, self.java):
            flow.await_flowing(began_s + AFTER_S + found["new"])
        if self.fault is Fault.STOP:
            waiting.join(PATIENCE_S)
        time.sleep(AFTER_S)
        found["librdkafka"], found["java"] = self.librdkafka.silence_s(began_s), self.java.silence_s(began_s)
        again_s = time.perf_counter()
        node.spawn()
        node.await_ready()
        self.nodes.await_in_sync(self.topic)
        found["whole"] = time.perf_counter() - again_s
        return found

    def _changed_after(self, began_s: float) -> float:
        """Seconds until another broker knows the new leader or, for a controller, another node knows the new
        controller."""
        address = next(node.address for node in self.nodes.brokers if node.node_id != self.victim)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self._successor_told_by(address) not in (-1, self.victim):
                return time.perf_counter() - began_s
            time.sleep(0.002)
        raise LoadError(f"{self.target.name} has no successor of node {self.victim} after {PATIENCE_S:.0f} s")

    def _successor_told_by(self, address: tuple[str, int]) -> int:
        """The new leader or controller according to a node; -1 if there is none, or if the node does not respond."""
        try:
            if self.fault is Fault.CONTROLLER:
                return active_controller(address)
            return int(partitions_of(address, [self.topic])[self.topic, self.partition].leader_id)
        except OSError:
            return -1


def _ended_after(await_end: object, began_s: float) -> float:
    assert callable(await_end)
    await_end()
    return time.perf_counter() - began_s


class Failover(Case):
    """Ten trials of one fault. The bounds of the pauses and of the new leader's election are (floor, goal) in
    seconds."""

    family = "failover"
    brokers = Brokers.CLUSTER
    warm_up_slices = 0
    repeats = 0
    runs = TRIALS

    def __init__(self, fault: Fault, silence: tuple[float, float], new: tuple[float, float]) -> None:
        self.fault = fault
        self.name = f"failover-{fault.name.lower()}"
        who = "controller" if fault is Fault.CONTROLLER else "leader"
        bounded = {"unit": "s", "better": Better.LOWER, "absolute": True}
        rows = {
            "new": (f"{fault.value}: time until the new {who} is known", new),
            "librdkafka": ("… longest pause between acknowledgements, librdkafka", silence),
            "java": ("… longest pause between acknowledgements, Java", silence),
        }
        if fault is Fault.STOP:
            rows["stopped"] = ("… time until it has stopped", (1.5, 1.0))
        rows["whole"] = ("… restarted: time until all replicas are in sync", (3.0, 2.0))
        self.measures = tuple(
            Measure(f"{self.name}.{key}", label, floor=floor, goal=goal, **bounded)  # type: ignore[arg-type]
            for key, (label, (floor, goal)) in rows.items()
        )

    def slice(self, target: Target) -> dict[str, float]:
        with Trial(clustered(target), self.fault) as trial:
            found = trial.play()
        return {f"{self.name}.{key}": value for key, value in found.items() if f"{self.name}.{key}" in self._keys()}

    def _keys(self) -> set[str]:
        return {measure.key for measure in self.measures}


def cases() -> list[Case]:
    return [
        Failover(Fault.LEADER, (1.5, 1.0), (0.5, 0.1)),
        Failover(Fault.CONTROLLER, (1.5, 1.0), (1.0, 0.5)),
        Failover(Fault.BOTH, (2.5, 2.5), (1.5, 1.0)),
        Failover(Fault.STOP, (1.5, 0.35), (0.5, 0.1)),
    ]
