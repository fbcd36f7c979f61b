"""The figures of the benchmarks and their bounds.

A Case applies one load and yields several figures. Each is a Measure, with bounds of its ratio to Apache Kafka.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from bench.memory import TOUCHED_BYTES
from bench.noise import Noise
from bench.stalls import Stalls
from bench.target import Cost, Target

STEADY = 0.05
"""How much two warm-up slices in a row may differ if the broker is warm."""


class Better(Enum):
    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a table row.

    `floor` and `goal` bound kpybroker's figure divided by Kafka's, or, with `absolute`, kpybroker's figure itself.
    """

    key: str
    label: str
    unit: str
    better: Better
    floor: float | None = None
    goal: float | None = None
    absolute: bool = False

    def reaches(self, value: float, bound: float) -> bool:
        return value >= bound if self.better is Better.HIGHER else value <= bound


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, smallest and largest value of one figure over the runs against one broker."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(median(values), min(values), max(values))


@dataclass(slots=True)
class Result:
    """The figures of one Measure, by broker name."""

    measure: Measure
    runs: dict[str, list[float]] = field(default_factory=dict)

    def spread(self, target: str) -> Spread | None:
        values = self.runs.get(target)
        return Spread.of(values) if values else None

    def user_share(self, target: str) -> float | None:
        """The share of user time in a figure that is CPU of the broker, over all runs. None for other figures."""
        costs = [value for value in self.runs.get(target, ()) if isinstance(value, Cost)]
        total = sum(costs)
        return sum(cost.user for cost in costs) / total if total else None

    @property
    def ratios(self) -> Spread | None:
        """kpybroker's figure divided by Kafka's, run by run: two slices of a run are taken one after the other."""
        pairs = zip(self.runs.get("kpybroker", ()), self.runs.get("kafka", ()), strict=False)
        ratios = [ours / theirs for ours, theirs in pairs if theirs]
        return Spread.of(ratios) if ratios else None

    @property
    def ratio(self) -> float | None:
        """kpybroker's median divided by Kafka's."""
        ours, theirs = self.spread("kpybroker"), self.spread("kafka")
        if ours is None or theirs is None or theirs.median == 0:
            return None
        return ours.median / theirs.median

    @property
    def is_cost(self) -> bool:
        """Whether this is CPU of the broker."""
        return any(isinstance(value, Cost) for values in self.runs.values() for value in values)

    @property
    def judged(self) -> float | None:
        """The number that floor and goal apply to."""
        if not self.measure.absolute:
            return self.ratio
        ours = self.spread("kpybroker")
        return None if ours is None else ours.median

    def holds(self, bound: float | None) -> bool | None:
        value = self.judged
        return None if bound is None or value is None else self.measure.reaches(value, bound)


@dataclass(slots=True)
class Row:
    """The figures of one case, with the noise of the slices that count, and the stalls of kpybroker meanwhile."""

    name: str
    results: list[Result]
    noise: list[Noise] = field(default_factory=list)
    stalls: Stalls | None = None

    @property
    def worst_noise(self) -> Noise:
        """The largest shares that others and the host took from a slice."""
        return Noise(
            max((each.others for each in self.noise), default=0), max((n.stolen for n in self.noise), default=0)
        )

    @property
    def is_noisy(self) -> bool:
        """Whether a slice was disturbed that no repetition could replace by a quiet one."""
        return not all(each.is_quiet for each in self.noise)

    @property
    def by_cost(self) -> list[Result]:
        """The figures, with the broker's CPU first."""
        return sorted(self.results, key=lambda each: not each.is_cost)

    def stalled(self, stalls: Stalls | None) -> None:
        """Add the stalls of another slice."""
        if stalls is not None:
            self.stalls = stalls if self.stalls is None else self.stalls.worse(stalls)


class Brokers(Enum):
    """The brokers that a case needs."""

    NONE = "none"
    DEFAULT = "default"
    FSYNC = "acknowledged when on disk"
    CLUSTER = "three of them"


class Case(ABC):
    """One load. `slice` is repeated: first to warm up, then once per run."""

    family: str
    name: str
    measures: tuple[Measure, ...]
    brokers = Brokers.DEFAULT
    runs: int | None = None
    """The number of measured slices, if it is not the default."""
    only: str | None = None
    """The only broker for which the figure is meaningful; None for both."""
    warm_up_slices = 6
    """The most warm-up slices, which end when two in a row agree within 5 %."""
    repeats = 2
    """How often a slice is repeated while other processes disturb it."""
    touched_bytes = TOUCHED_BYTES
    """How much free memory is used before each slice; more than it writes."""
    is_quick = False
    """Whether `--quick` measures it."""

    def prepare(self, target: Target) -> None:
        """Create topics and data, outside all measurements."""
        return

    @abstractmethod
    def slice(self, target: Target) -> dict[str, float]:
        """Apply the load once. Returns figures by Measure key."""

    def clean(self, target: Target) -> None:
        """Release disk space and memory."""
        return


def warm_up(case: Case, target: Target, slices_max: int) -> None:
    """Repeat slices until two in a row agree, or the case's cap or `slices_max` is reached. Their figures do not
    count."""
    before = 0.0
    for _ in range(min(case.warm_up_slices, slices_max)):
        now = case.slice(target)[case.measures[0].key]
        if abs(now - before) <= STEADY * now:
            return
        before = now


class LoadError(Exception):
    """The broker under load returned an error or lost records, so its figures would be meaningless."""
