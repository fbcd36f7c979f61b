"""A mixed cluster of three brokers beside three brokers of Apache Kafka.

`python -m bench.mixed_cluster` measures produce with acks=all to three replicas, with all leaders on one broker of
either kind; then the time without acknowledgements after kill -9 of a leader of either kind, while the active
controller, another node, is of either kind. Apache Kafka formats all directories, as in a migration. One cluster runs
at a time.
"""

import argparse
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench import control, memory
from bench.brokers import HEAP
from bench.cluster import ClusterAckLatency, ClusterProduce
from bench.failover import Fault, Trial
from bench.measure import Better, Case, LoadError, Measure, Spread, warm_up
from bench.noise import Noise, measured, quietest
from bench.report import number, shown_ratio, spread
from bench.target import ClusterTarget
from oracle.cluster import Cluster
from oracle.takeover import KAFKA, KPYBROKER

NODES = (1, 2, 3)
ALONE, BY_KPYBROKER, BY_KAFKA = "Apache Kafka alone", "mixed, kpybroker leads", "mixed, Apache Kafka leads"
NAMES = {KPYBROKER: "kpybroker", KAFKA: "Apache Kafka"}
WARM_UP_SLICES_MAX = 10
ELECTIONS_MAX = 20
SILENCE_GOAL_S = 1.5
"""Where kpybroker is the active controller."""

Figures = dict[str, list[float]]
"""By Measure key."""


@contextlib.contextmanager
def started(kpybroker: tuple[int, ...]) -> Iterator[Cluster]:
    """A cluster in which these nodes are kpybroker. Apache Kafka formats all directories."""
    nodes = Cluster(KAFKA, heap=HEAP)
    for node in nodes.nodes.values():
        node.prepare()
    if kpybroker:
        nodes.become(KPYBROKER, *kpybroker)
    with nodes:
        yield nodes
        control.forget()
        nodes.kill9()  # the last nodes of Apache Kafka to stop would wait for a controller


def target(name: str, nodes: Cluster, leader: int, *followers: int) -> ClusterTarget:
    """New topics are led by `leader`."""
    brokers = (leader, *(followers or [node for node in NODES if node != leader]))
    return ClusterTarget(name, nodes.bootstrap, 0, replicas=len(NODES), cluster=nodes, brokers=brokers)


# ---- loads


class Loads:
    """The figures of all loads, by the cluster and the leader."""

    def __init__(self, runs: int, console: Console) -> None:
        self._runs = runs
        self._console = console
        self.cases: list[Case] = [
            ClusterProduce(100, "librdkafka produce 100 B", 600_000),
            ClusterProduce(1024, "librdkafka produce 1 KiB", 200_000),
            ClusterAckLatency(),
        ]
        self.figures: dict[str, Figures] = {}
        self.noise: dict[str, Noise] = {}

    def take(self, kpybroker: tuple[int, ...]) -> None:
        """Run all loads on Apache Kafka alone, and on a cluster in which these nodes are kpybroker."""
        with started(()) as nodes:
            self._all([target(ALONE, nodes, NODES[0])])
        with started(kpybroker) as nodes:
            kafka = next(node for node in NODES if node not in kpybroker)
            self._all([target(BY_KPYBROKER, nodes, kpybroker[0]), target(BY_KAFKA, nodes, kafka)])

    def _all(self, targets: list[ClusterTarget]) -> None:
        for case in self.cases:
            for each in targets:
                self._console.print(f"{case.name}: {each.name}, warming up")
                warm_up(case, each, WARM_UP_SLICES_MAX)
            for run in range(self._runs):
                for each in targets:
                    self._console.print(f"{case.name}: {each.name}, run {run + 1} of {self._runs}")
                    self._run(case, each)

    def _run(self, case: Case, each: ClusterTarget) -> None:
        memory.touch(case.touched_bytes)
        taken = quietest(lambda: measured(lambda: case.slice(each)), case.repeats)
        worst = self.noise.get(case.name, Noise(0.0, 0.0))
        self.noise[case.name] = max(worst, taken.noise, key=lambda noise: noise.excess)
        for key, value in taken.figures.items():
            self.figures.setdefault(each.name, {}).setdefault(key, []).append(value)

    def table(self) -> Table:
        """The median, the smallest and the largest figure of each load, and the ratio of the medians."""
        mixed = (BY_KPYBROKER, BY_KAFKA)
        shown = Table("acks=all, RF 3", "unit", ALONE, *(head for name in mixed for head in (name, "ratio")), "others")
        for case in self.cases:
            for measure in case.measures:
                found = {name: Spread.of(figures[measure.key]) for name, figures in self.figures.items()}
                cells = [_shown(found[ALONE])]
                for name in mixed:
                    cells += [_shown(found[name]), shown_ratio(found[name].median / found[ALONE].median)]
                shown.add_row(measure.label, measure.unit, *cells, f"{self.noise[case.name].others:.0%}")
        return shown


def _shown(found: Spread) -> str:
    return spread(found).replace("[", "\\[")


# ---- failover


class Failure(NamedTuple):
    """The kinds of the leader that is killed, and of the active controller. `is_alone`: all nodes are Apache Kafka."""

    victim: str
    controller: str
    is_alone: bool = False

    @property
    def label(self) -> str:
        return ALONE if self.is_alone else f"{NAMES[self.victim]} is killed, {NAMES[self.controller]} controls"

    @property
    def kpybroker(self) -> tuple[int, ...]:
        """The kpybroker nodes. The first node is killed, the second one controls, and the third one, which leads next,
        is of the other kind than the first one."""
        third = KAFKA if self.is_alone or self.victim == KPYBROKER else KPYBROKER
        kinds = zip(NODES, (self.victim, self.controller, third), strict=True)
        return tuple(node for node, kind in kinds if kind == KPYBROKER)


FAILURES = [
    Failure(KAFKA, KAFKA, is_alone=True),
    *(Failure(victim, controller) for controller in (KAFKA, KPYBROKER) for victim in (KAFKA, KPYBROKER)),
]
SILENCES = {
    "new": Measure("new", "new leader known", "s", Better.LOWER),
    "librdkafka": Measure("librdkafka", "silence, librdkafka", "s", Better.LOWER, goal=SILENCE_GOAL_S),
    "java": Measure("java", "silence, Java", "s", Better.LOWER, goal=SILENCE_GOAL_S),
    "whole": Measure("whole", "restarted: in sync after", "s", Better.LOWER),
}


def make_active(nodes: Cluster, node_id: int) -> None:
    """Restart the active controller until this node is it. Raises LoadError."""
    for _ in range(ELECTIONS_MAX):
        nodes.await_voters()
        active = nodes.active_controller()
        if active == node_id:
            return
        if active in nodes.nodes:
            nodes.nodes[active].stop()
            nodes.nodes[active].start()
    raise LoadError(f"node {node_id} is not the active controller after {ELECTIONS_MAX} elections")


def silences(failure: Failure, trials: int) -> Figures:
    """Seconds of each trial, by the keys of SILENCES."""
    victim, controller, third = NODES
    found: Figures = {key: [] for key in SILENCES}
    with started(failure.kpybroker) as nodes:
        led = target(failure.label, nodes, victim, third, controller)
        for _ in range(trials):
            make_active(nodes, controller)
            with Trial(led, Fault.LEADER) as trial:
                if trial.controller != controller:
                    raise LoadError(f"node {trial.controller} has become the active controller before the trial")
                for key, seconds in trial.play().items():
                    found[key].append(seconds)
    return found


def silence_table(found: dict[Failure, Figures]) -> Table:
    """Medians, with the shortest and the longest time."""
    shown = Table("kill -9 of a leader", *(measure.label for measure in SILENCES.values()), "goal")
    for failure, figures in found.items():
        cells = [_shown(Spread.of(figures[key])) for key in SILENCES]
        if failure.controller != KPYBROKER:
            shown.add_row(failure.label, *cells, "")
            continue
        worst_s = max(max(figures[key]) for key, measure in SILENCES.items() if measure.goal is not None)
        verdict = "reached" if worst_s <= SILENCE_GOAL_S else "[bold red]SHORT[/]"
        shown.add_row(failure.label, *cells, f"{verdict}: {number(worst_s)} of {SILENCE_GOAL_S:g} s")
    return shown


def main() -> None:
    """Print one table of loads and one of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="slices of each load; 0 for no loads")
    parser.add_argument("--trials", type=int, default=10, help="trials of each failure; 0 for none")
    parser.add_argument("--kpybroker", type=int, choices=(1, 2), default=1, help="kpybroker nodes under load")
    given = parser.parse_args()
    console = Console()
    if given.runs:
        loads = Loads(given.runs, console)
        loads.take(NODES[: given.kpybroker])
        console.print(loads.table())
    if given.trials:
        found = {}
        for failure in FAILURES:
            console.print(f"{failure.label}: {given.trials} trials")
            found[failure] = silences(failure, given.trials)
        console.print(silence_table(found))


if __name__ == "__main__":
    main()
