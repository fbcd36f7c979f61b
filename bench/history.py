"""The history of the figures: bench/results/history.jsonl, with one line for each run. `python -m bench.plot` draws it.

A line belongs to one machine. Figures of different machines are never compared.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.measure import Result, Row

HISTORY = Path(__file__).resolve().parent / "results" / "history.jsonl"
MACHINE = ("processor", "memory", "system", "python", "build", "kafka", "librdkafka")


@dataclass(frozen=True, slots=True)
class Figure:
    """Median, smallest and largest value of one figure of one broker. `user`: the user part of a median that is CPU."""

    median: float
    low: float
    high: float
    user: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """One load: the figures by key of the Measure and broker, and what disturbed the worst slice that counts."""

    figures: dict[str, dict[str, Figure]]
    others: float = 0.0
    stolen: float = 0.0
    noisy: bool = False
    stall_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One run. `commit` ends with "+" if the sources of the broker differed from it."""

    commit: str
    date: str
    machine: dict[str, str]
    quick: bool = False
    loads: dict[str, Load] = field(default_factory=dict)

    def text(self) -> str:
        """JSON, without a line feed. Figures are lists, to keep the file small."""
        given = asdict(self)
        for load in given["loads"].values():
            for of in load["figures"].values():
                of.update({who: [each for each in figure.values() if each is not None] for who, figure in of.items()})
        return json.dumps(given, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> "Line":
        """The inverse of `text`. Raises ValueError, KeyError or TypeError if the text is no line of a history."""
        given = json.loads(text)
        loads = {}
        for name, load in given.pop("loads").items():
            by_key = load.pop("figures").items()
            figures = {key: {who: Figure(*figure) for who, figure in of.items()} for key, of in by_key}
            loads[name] = Load(figures, **load)
        return cls(**given, loads=loads)


def line(rows: Iterable[Row], around: dict[str, str], *, is_quick: bool) -> Line:
    """The line of a run. `around`: `report.surroundings()`."""
    machine = {name: around[name] for name in MACHINE}
    return Line(around["commit"], around["date"], machine, is_quick, {row.name: _load(row) for row in rows})


def _load(row: Row) -> Load:
    noise, stalls = row.worst_noise, row.stalls
    return Load(
        {result.measure.key: _figures(result) for result in row.results if result.runs},
        rounded(noise.others),
        rounded(noise.stolen),
        row.is_noisy,
        None if stalls is None else rounded(stalls.worst_s * 1e3),
    )


def _figures(result: Result) -> dict[str, Figure]:
    figures = {}
    for target in result.runs:
        found, user = result.spread(target), result.user_share(target)
        assert found is not None, "a target with runs"
        part = None if user is None else rounded(found.median * user)
        figures[target] = Figure(rounded(found.median), rounded(found.low), rounded(found.high), part)
    return figures


def rounded(value: float) -> float:
    """Three significant digits, to keep the file small."""
    return float(f"{value:.3g}")


def append(added: Line, path: Path = HISTORY) -> Path:
    """Add a line at the end of the file. Returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(added.text() + "\n")
    return path


def read(path: Path = HISTORY) -> list[Line]:
    """All lines, the oldest first. Raises ValueError with the number of a line that is not valid."""
    lines = []
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, text in enumerate(file, 1):
            try:
                lines.append(Line.parse(text))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                why = f"{path}, line {number} is no line of `python -m bench`: {error!r}; remove it"
                raise ValueError(why) from error
    return lines
