"""Injects faults, several at the same time, drawn from a seed.

A fault is a generator: it breaks something, yields the number of seconds to wait, and repairs it. No node has two
faults that end its process at the same time, so that each node is known to be up or down. Links may have several
faults.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from random import Random

from chaos.connection_owner import CLIENTS
from chaos.history import History, Place
from chaos.hostile import Deaf, Dial, Dribblers, Flooders, Hostile, dial
from chaos.links import Flow, Links
from chaos.slow_disks import SlowDisks
from chaos.tearing import tear
from oracle import cluster as names
from oracle.cluster import Cluster, ClusterNode

Trouble = Generator[float, None, None]
Kinds = list[tuple[int, Callable[[], Trouble | None]]]
"""Kinds of faults: the weight of each, and the function that begins such a fault, or returns None if it is impossible
now."""
AT_ONCE_MAX = 3
PAUSE_S = (0.2, 2.5)
TORN_SHARE = 0.5
STOP_PATIENCE_S = 40.0
POLL_S = 0.05
TAIL_BYTES = 1500
LOOK_AGAIN_S = 0.5
STEP_S = 0.2
SLOW_WRITES_MS = (60, 120, 200)
"""The duration of each write on a slow disk. acks=all waits for every in-sync replica: for the write in progress and
for the record's own, on the leader and on a follower."""
COMMITS = "__consumer_offsets"


class Nemesis:
    """Injects random faults into `cluster`. `counted` counts them by kind; `told` is called with a line for each
    fault."""

    def __init__(
        self,
        cluster: Cluster,
        links: Links,
        history: History,
        places: list[Place],
        seed: int,
        told: Callable[[str], None],
        disks: SlowDisks | None = None,
        dial: Dial = dial,
    ) -> None:
        """disks: the disks of the nodes, if they can be slowed down. dial: how hostile clients connect."""
        self._dial = dial
        self._disks = disks if disks is not None and disks.is_available else None
        self._cluster = cluster
        self._links = links
        self._history = history
        self._places = places
        self.random = Random(seed)
        self.told = told
        self._busy: set[int] = set()
        self._down: set[int] = set()
        self._torn: int | None = None
        """The node whose log was torn. Until it is in sync again no other node may be killed: after two unclean
        shutdowns no replica might be left that is known to have all records."""
        self._look_again_s = 0.0
        self._order = itertools.count()
        self.counted: Counter[str] = Counter()
        self._kinds: Kinds = [
            (6, self._kill_any),
            (4, self._kill_leader),
            (4, self._kill_controller),
            (2, self._kill_several),
            (2, self._restart_quickly),
            (2, self._stop_cleanly),
            (3, self._pause),
            (3, self._isolate),
            (3, self._one_way),
            (2, self._part_two),
            (2, self._part_controllers),
            (2, self._part_clients),
            (2, self._reset),
            (2, self._slow),
        ]
        self._mild: Kinds = [
            (4, self._slow_disk),
            (2, self._dribble),
            (2, self._deafen),
            (2, self._flood),
        ]
        """Faults that must not delay acknowledgements for long: every node is up and reachable."""
        self._is_slowed: int | None = None
        """The node with a slow disk; one at a time, so that a majority is healthy."""

    def add_mild(self, kinds: Kinds) -> None:
        """Also draw from these kinds of mild faults."""
        self._mild += kinds

    # ---- a period of faults

    def trouble(self, for_s: float, *, is_mild: bool = False) -> None:
        """Inject faults for `for_s` seconds, then repair all of them, so that every node runs.

        is_mild: only slow disks and hostile clients; no node is killed, stopped or cut off."""
        kinds = self._mild if is_mild else self._kinds + self._mild
        end = time.monotonic() + for_s
        running: list[tuple[float, int, Trouble]] = []
        next_s = time.monotonic()
        while running or time.monotonic() < end:
            now = time.monotonic()
            if now < end and now >= next_s and len(running) < AT_ONCE_MAX:
                begun = self._draw(kinds)
                if begun is not None:
                    heapq.heappush(running, (now, next(self._order), begun))
                next_s = now + self.random.uniform(*PAUSE_S)
            while running and running[0][0] <= now:
                _, _, trouble = heapq.heappop(running)
                wait_s = next(trouble, None)
                if wait_s is not None:
                    heapq.heappush(running, (now + wait_s, next(self._order), trouble))
            self.look()
            self._look_whether_whole()
            time.sleep(POLL_S)
        self._links.heal_all()

    def look(self) -> None:
        """Record an incident for each node that has exited on its own, and start it again."""
        for node in self._cluster.nodes.values():
            if node.node_id not in self._down and not node.running:
                said = node.output.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
                self._history.incident(f"node {node.node_id} ({node.name}) exited by itself: {said}")
                self._links.down(node.node_id)
                self._start(node)

    def is_whole(self) -> bool:
        """Whether every node is up and registered, and all its replicas are in sync."""
        topics = sorted({place.topic for place in self._places})
        if self._down or not all(node.ready() for node in self._cluster.nodes.values()):
            return False
        try:
            self._cluster.await_in_sync(*topics, COMMITS, patience_s=0.0)
        except TimeoutError:
            return False
        return True

    def _look_whether_whole(self) -> None:
        if self._torn is not None and not self._busy and time.monotonic() > self._look_again_s:
            self._torn = None if self.is_whole() else self._torn
            self._look_again_s = time.monotonic() + LOOK_AGAIN_S

    def _draw(self, kinds: Kinds) -> Trouble | None:
        _, make = self.random.choices(kinds, [weight for weight, _ in kinds])[0]
        return make()

    # ---- processes

    def _kill(self, node: ClusterNode) -> None:
        self._down.add(node.node_id)
        node.kill9()
        self._links.down(node.node_id)
        self.counted["kills"] += 1

    def _start(self, node: ClusterNode) -> None:
        node.spawn()
        self._down.discard(node.node_id)
        self._links.up(node.node_id, node.pid)

    def _idle(self) -> list[ClusterNode]:
        return [node for node in self._cluster.nodes.values() if node.node_id not in self._busy]

    def _mortal(self) -> list[ClusterNode]:
        """The nodes that may be killed now."""
        return [node for node in self._idle() if self._torn in (None, node.node_id) and not self._down]

    def _kill_any(self) -> Trouble | None:
        mortal = self._mortal()
        return self._killed(self.random.choice(mortal), "a node") if mortal else None

    def _kill_leader(self) -> Trouble | None:
        place = self.random.choice(self._places)
        return self._kill_known(self._cluster.leader_of(*place), f"the leader of {place.topic}-{place.partition}")

    def _kill_controller(self) -> Trouble | None:
        found = self._kill_known(self._cluster.active_controller(), "the controller")
        if found is not None:
            self.counted["controller kills"] += 1
        return found

    def _kill_known(self, node_id: int, what: str) -> Trouble | None:
        node = self._cluster.nodes.get(node_id)
        return self._killed(node, what) if node is not None and node in self._mortal() else None

    def _killed(self, node: ClusterNode, what: str) -> Trouble:
        self._busy.add(node.node_id)
        torn = self.random.random() < TORN_SHARE and self._torn is None and self.is_whole()
        self._kill(node)
        self.told(f"kill {what}, node {node.node_id}{', torn' if torn else ''}")
        if torn:
            self._torn = node.node_id
            self.counted["torn"] += 1
            for line in tear(node.data, self.random):
                self.told(f"  {line}")
        yield self.random.choice((0.0, 0.5, 2.0, 5.0))
        self._start(node)
        yield 1.0
        self._busy.discard(node.node_id)

    def _kill_several(self) -> Trouble | None:
        if self._busy or self._torn is not None:
            return None
        nodes = list(self._cluster.nodes.values())
        return self._all_killed(self.random.sample(nodes, self.random.randint(2, len(nodes))))

    def _all_killed(self, nodes: list[ClusterNode]) -> Trouble:
        self.told(f"kill nodes {[node.node_id for node in nodes]} at once")
        for node in nodes:
            self._busy.add(node.node_id)
            self._kill(node)
        yield self.random.choice((0.0, 1.0, 3.0))
        for node in self.random.sample(nodes, len(nodes)):
            self._start(node)
            yield self.random.choice((0.0, 0.3))
        yield 1.0
        self._busy -= {node.node_id for node in nodes}

    def _restart_quickly(self) -> Trouble | None:
        mortal = self._mortal()
        return self._restarted_quickly(self.random.choice(mortal)) if mortal else None

    def _restarted_quickly(self, node: ClusterNode) -> Trouble:
        self.told(f"kill node {node.node_id} three times in a row")
        self._busy.add(node.node_id)
        for _ in range(3):
            self._kill(node)
            self._start(node)
            yield self.random.uniform(0.05, 1.2)
        self._busy.discard(node.node_id)

    def _stop_cleanly(self) -> Trouble | None:
        idle = self._idle()
        return self._stopped(self.random.choice(idle)) if idle and not self._down else None

    def _stopped(self, node: ClusterNode) -> Trouble:
        self.told(f"stop node {node.node_id}")
        self._busy.add(node.node_id)
        self._down.add(node.node_id)
        self.counted["clean stops"] += 1
        node.terminate()
        deadline = time.monotonic() + STOP_PATIENCE_S
        while node.running and time.monotonic() < deadline:
            yield POLL_S
        if node.running:
            self._history.incident(f"node {node.node_id} did not stop within {STOP_PATIENCE_S} s")
        node.kill9()
        self._links.down(node.node_id)
        yield self.random.choice((0.0, 1.0))
        self._start(node)
        yield 1.0
        self._busy.discard(node.node_id)

    def _pause(self) -> Trouble | None:
        idle = self._idle()
        return self._paused(self.random.choice(idle)) if idle and not self._down else None

    def _paused(self, node: ClusterNode) -> Trouble:
        self._busy.add(node.node_id)
        for_s = self.random.choice((0.3, 1.0, 2.0, 5.0, 8.0))
        self.told(f"pause node {node.node_id} for {for_s} s")
        self.counted["pauses"] += 1
        node.pause()
        yield for_s
        node.resume()
        yield 0.5
        self._busy.discard(node.node_id)

    # ---- links

    def _between(self, one: int, other: int, *, both: bool = True) -> list[Flow]:
        pairs = [(one, other), (other, one)] if both else [(one, other)]
        return [Flow(*pair, name) for pair in pairs for name in (names.CLIENTS, names.CONTROLLER)]

    def _others(self, node_id: int) -> list[int]:
        return [other for other in self._cluster.nodes if other != node_id]

    def _any(self) -> int:
        return self.random.choice(list(self._cluster.nodes))

    def _isolate(self) -> Trouble:
        node_id = self._any()
        others = self._others(node_id) + ([CLIENTS] if self.random.random() < 0.5 else [])
        return self._parted(
            [flow for other in others for flow in self._between(node_id, other)], f"{node_id} | {others}"
        )

    def _one_way(self) -> Trouble:
        node_id = self._any()
        inwards = self.random.random() < 0.5
        others = self._others(node_id)
        pairs = [(other, node_id) if inwards else (node_id, other) for other in others]
        flows = [flow for pair in pairs for flow in self._between(*pair, both=False)]
        return self._parted(flows, f"node {node_id} {'receives' if inwards else 'sends'} nothing", hang=True)

    def _part_two(self) -> Trouble:
        one, other = self.random.sample(list(self._cluster.nodes), 2)
        return self._parted(self._between(one, other), f"{one} | {other}")

    def _part_controllers(self) -> Trouble:
        node_id = self._any()
        flows = [flow for other in self._others(node_id) for flow in self._between(node_id, other)]
        flows = [flow for flow in flows if flow.name == names.CONTROLLER]
        return self._parted(flows, f"{node_id} | controllers")

    def _part_clients(self) -> Trouble:
        node_id = self._any()
        return self._parted(self._between(CLIENTS, node_id), f"{node_id} | clients")

    def _parted(self, flows: list[Flow], what: str, *, hang: bool = False) -> Trouble:
        hang = hang or self.random.random() < 0.5
        for_s = self.random.choice((0.5, 2.0, 4.0, 8.0))
        self.told(f"partition {what} for {for_s} s, {'silent' if hang else 'refused'}")
        self.counted["partitions"] += 1
        (self._links.hang if hang else self._links.cut)(flows)
        yield for_s
        self._links.heal(flows)

    def _every_flow(self) -> Iterator[Flow]:
        ends = [CLIENTS, *self._cluster.nodes]
        for one, other in itertools.permutations(ends, 2):
            yield from self._between(one, other, both=False)

    def _reset(self) -> Trouble:
        flows = list(self._every_flow())
        chosen = self.random.sample(flows, self.random.choice((3, 10, len(flows))))
        self.told(f"reset {self._links.reset(chosen)} connections")
        self.counted["resets"] += 1
        yield 0.0

    def _slow(self) -> Trouble:
        flows = list(self._every_flow())
        chosen = self.random.sample(flows, self.random.choice((3, 10)))
        delay_s = self.random.choice((0.02, 0.1, 0.4))
        self.told(f"slow {len(chosen)} links by {delay_s} s")
        self.counted["slow links"] += 1
        self._links.delay(chosen, delay_s)
        yield self.random.choice((2.0, 6.0))
        self._links.heal(chosen)

    # ---- slow disks, hostile clients

    def _slow_disk(self) -> Trouble | None:
        if self._disks is None or self._is_slowed is not None:
            return None
        return self._slowed(self._disks, self._any(), self.random.choice(SLOW_WRITES_MS))

    def _slowed(self, disks: SlowDisks, node_id: int, ms: int) -> Trouble:
        for_s = self.random.choice((2.0, 5.0, 10.0))
        self.told(f"each write of node {node_id} takes {ms} ms for {for_s} s")
        self.counted["slow disks"] += 1
        self._is_slowed = node_id
        disks.slow_down(node_id, ms)
        yield for_s
        disks.let_go(node_id)
        self._is_slowed = None

    def _dribble(self) -> Trouble:
        return self.visited("send half frames", lambda address: Dribblers(address, self._dial))

    def _deafen(self) -> Trouble:
        topic = self._places[0].topic
        return self.visited("do not read", lambda address: Deaf(address, topic, len(self._places), self._dial))

    def _flood(self) -> Trouble:
        return self.visited("flood", lambda address: Flooders(address, self._dial))

    def visited(self, what: str, come: Callable[[tuple[str, int]], Hostile]) -> Trouble:
        """Run hostile clients against a node. They bypass the proxy, because it would read the bytes that they leave
        unread."""
        node = self.random.choice(self._cluster.brokers)
        for_s = self.random.choice((2.0, 5.0, 10.0))
        self.told(f"clients of node {node.node_id} {what} for {for_s} s")
        self.counted[f"clients that {what}"] += 1
        end = time.monotonic() + for_s
        clients = come(node.address)
        while time.monotonic() < end:
            clients.step()
            yield STEP_S
        clients.close()
