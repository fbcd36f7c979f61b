"""The figures of the benchmarks and their bounds.

A Case applies one load and yields several figures. Each is a Measure, with bounds of its ratio to Apache Kafka.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

from bench.target import Target


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

    @property
    def ratio(self) -> float | None:
        """kpybroker's median divided by Kafka's."""
        ours, theirs = self.spread("kpybroker"), self.spread("kafka")
        if ours is None or theirs is None or theirs.median == 0:
            return None
        return ours.median / theirs.median

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

    def prepare(self, target: Target) -> None:
        """Create topics and data, outside all measurements."""
        return

    @abstractmethod
    def slice(self, target: Target) -> dict[str, float]:
        """Apply the load once. Returns figures by Measure key."""

    def clean(self, target: Target) -> None:
        """Release disk space and memory."""
        return


class LoadError(Exception):
    """The broker under load returned an error or lost records, so its figures would be meaningless."""
