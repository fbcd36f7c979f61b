"""Measures the cost of metadata changes at scale: one controller with many brokers, of which one dies, and partitions
that are reassigned.

`python -m kpybroker.sim.scale --brokers 100 --partitions 100000`. The controller's Machine and the Image are those of
the product. The brokers are not run: only their requests are sent, and they share one Image. The output has the numbers
of records, requests to the controller and metadata fetches (at most one for each broker and committed batch), and the
CPU time.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from random import Random
from time import process_time
from typing import Any, NamedTuple

from kpybroker.config import parse_config
from kpybroker.controller import commands as asked
from kpybroker.controller.features import SUPPORTED_FEATURES
from kpybroker.controller.machine import ControllerMachine
from kpybroker.controller.state import TopicState
from kpybroker.errors import KafkaError
from kpybroker.machine.contract import Moment, Stored, Tick, Ticket
from kpybroker.metadata.brokers import BrokerEndpoint
from kpybroker.metadata.image import Image
from kpybroker.metadata.topics import PartitionImage
from kpybroker.wire.stored.metadata import frame_record

NOW_MS = 1_700_000_000_000
PER_TOPIC = 1000
REPLICAS = 3
MOVED = 1000
TIMEOUT_MS = 60_000


class StepCost(NamedTuple):
    """The cost of one step: CPU time of the controller and of one Image, requests to the controller, records and
    bytes."""

    step: str
    controller_s: float
    image_s: float
    requests: int
    fetches: int
    records: int
    size_bytes: int

    def __str__(self) -> str:
        return (
            f"| {self.step} | {self.controller_s * 1000:,.0f} | {self.image_s * 1000:,.0f} | {self.requests:,} | "
            f"{self.fetches:,} | {self.records:,} | {self.size_bytes / 1024:,.0f} |"
        )


COLUMNS = ("step", "controller ms", "ms per Image", "requests", "metadata fetches", "records", "KiB")
HEADER = "\n".join((f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"))


class Plane:
    """A controller, the end offset of its log, and the Image that all brokers share."""

    def __init__(self, brokers: int) -> None:
        config = parse_config({"kpybroker.max.partitions": str(10**7)})
        self.machine = ControllerMachine(config, Random(1), lambda: self.end)
        self.image = Image()
        self.end = 0
        self.epochs: dict[int, int] = {}
        self.brokers = brokers
        self._spent: Counter[str] = Counter()

    def ask(self, command: Any) -> Any:
        """Send one request. The controller decides, and its records are applied to its state and to the Image."""
        began = process_time()
        outcome = self.machine.decide(Ticket(TIMEOUT_MS), command, Moment(NOW_MS, NOW_MS))
        for record in outcome.records:
            self.machine.apply(record)
        decided = process_time()
        self.end += len(outcome.records)
        if outcome.records:
            self.image = self.image.apply([record.message for record in outcome.records], self.end - 1, 1)
        self._spent.update(
            {
                "controller us": round((decided - began) * 1e6),
                "image us": round((process_time() - decided) * 1e6),
                "requests": 1,
                "fetches": self.brokers if outcome.records else 0,
                "records": len(outcome.records),
                "bytes": sum(_size(record) for record in outcome.records),
            }
        )
        ((_, answer),) = outcome.answers
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def row(self, step: str) -> StepCost:
        """The cost since the previous row."""
        spent, self._spent = self._spent, Counter()
        cpu_s = spent["controller us"] / 1e6, spent["image us"] / 1e6
        return StepCost(step, *cpu_s, spent["requests"], spent["fetches"], spent["records"], spent["bytes"])

    def partitions(self) -> Iterator[tuple[TopicState, int, PartitionImage]]:
        for topic in self.machine.state.topics.values():
            for index, partition in topic.partitions.items():
                yield topic, index, partition

    # ---- requests of brokers

    def join(self, node_id: int) -> None:
        self.epochs[node_id] = self.ask(
            asked.RegisterBroker(
                node_id=node_id,
                incarnation_id=node_id.to_bytes(8) + self.end.to_bytes(8),
                endpoints=(BrokerEndpoint("PLAINTEXT", "10.0.0.1", 9092),),
                features=tuple((name, *levels) for name, levels in SUPPORTED_FEATURES.items()),
                rack=None,
                log_dirs=((1000 + node_id).to_bytes(16),),  # the first hundred are reserved (KIP-858)
                previous_epoch=-1,
            )
        )
        self.beat(node_id)

    def beat(self, node_id: int) -> None:
        self.ask(asked.BrokerHeartbeat(node_id, self.epochs[node_id], metadata_offset=self.end))

    def all_in_sync(self) -> None:
        """Have every leader propose its live replicas as the ISR of all its partitions, in one request."""
        state = self.machine.state
        wanted: dict[int, list[asked.ProposedIsr]] = {}
        for topic, index, now in self.partitions():
            live = [node_id for node_id in now.replicas if state.active(node_id)]
            if now.leader >= 0 and set(live) != set(now.isr):
                isr = tuple((node_id, self.epochs[node_id]) for node_id in live)
                proposal = asked.ProposedIsr(topic.topic_id, index, now.leader_epoch, now.partition_epoch, isr, 0)
                wanted.setdefault(now.leader, []).append(proposal)
        for leader, proposals in wanted.items():
            self.ask(asked.AlterPartition(leader, self.epochs[leader], tuple(proposals)))


def _size(record: Stored) -> int:
    return len(frame_record(record.message))


def run(brokers: int, partitions: int) -> list[StepCost]:
    """Run all steps in order, and check the effect of each step."""
    plane, rows = Plane(brokers), []
    for node_id in range(1, brokers + 1):
        plane.join(node_id)
    rows.append(plane.row(f"{brokers} brokers join"))
    for number in range(partitions // PER_TOPIC):
        plane.ask(asked.CreateTopics((asked.NewTopic(f"t{number}", PER_TOPIC, REPLICAS),)))
    rows.append(plane.row(f"{partitions:,} partitions"))
    for node_id in plane.epochs:
        plane.beat(node_id)
    rows.append(plane.row("one heartbeat per broker"))
    led = sum(now.leader == 1 for _, _, now in plane.partitions())
    plane.ask(asked.BrokerLost(1, plane.epochs[1], dead=True))
    while plane.machine.deadline_ms() == 0:
        plane.ask(Tick())
    assert all(now.leader not in (1, -1) and 1 not in now.isr for _, _, now in plane.partitions())
    rows.append(plane.row(f"a broker dies that led {led:,}"))
    plane.join(1)
    plane.all_in_sync()
    assert all(len(now.isr) == REPLICAS for _, _, now in plane.partitions())
    rows.append(plane.row("it comes back in sync"))
    plane.ask(asked.ElectLeaders(asked.ElectionType.PREFERRED, None))
    assert all(now.leader == now.replicas[0] for _, _, now in plane.partitions())
    rows.append(plane.row("preferred leader election"))
    rows.append(_move(plane, brokers))
    return rows


def _move(plane: Plane, brokers: int) -> StepCost:
    """Reassign one replica of each of `MOVED` partitions to another broker, until all reassignments complete."""
    moves = []
    for topic, index, now in list(plane.partitions())[:MOVED]:
        target = next(each for each in range(1, brokers + 1) if each not in now.replicas)
        moves.append(asked.Reassignment(topic.name, index, (*now.replicas[:-1], target)))
    plane.ask(asked.AlterReassignments(tuple(moves)))
    plane.all_in_sync()
    assert not any(now.adding_replicas or now.removing_replicas for _, _, now in plane.partitions())
    return plane.row(f"{len(moves):,} partitions move")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100_000)
    given = parser.parse_args()
    print(HEADER)
    for row in run(given.brokers, given.partitions):
        print(row)


if __name__ == "__main__":
    main()
