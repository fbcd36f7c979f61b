"""Formats the figures as a table for the terminal, as Markdown for docs/benchmarks.md, and as JSON."""

import json
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from bench.measure import Result, Spread
from oracle.jars import KAFKA_VERSION

RESULTS = Path(__file__).resolve().parent / "results"
HEADINGS = ("measurement", "unit", "kpybroker", f"Kafka {KAFKA_VERSION}", "ratio", "floor", "goal", "")
_MARKS = {None: "", True: "held", False: "SHORT"}


def shown_ratio(ratio: float) -> str:
    """Two decimal places; below 0.1 two significant digits, and at most six decimal places."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{float(f'{ratio:.2g}'):f}".rstrip("0")


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def spread(found: Spread | None) -> str:
    if found is None:
        return "–"
    if found.low == found.high:
        return number(found.median)
    return f"{number(found.median)} [{number(found.low)}-{number(found.high)}]"


def mark(result: Result) -> str:
    """ "goal", "held" or "SHORT"; empty without a floor."""
    measure = result.measure
    if result.holds(measure.goal):
        return "goal"
    return _MARKS[result.holds(measure.floor)]


def row(result: Result) -> tuple[str, ...]:
    measure = result.measure
    bounds = tuple("–" if bound is None else f"{bound:g}" for bound in (measure.floor, measure.goal))
    ratio = "–" if result.ratio is None else shown_ratio(result.ratio)
    figures = (spread(result.spread("kpybroker")), spread(result.spread("kafka")))
    return (measure.label, measure.unit, *figures, ratio, *bounds, mark(result))


def surroundings() -> dict[str, str]:
    """The machine and the versions of all software, which belong to the figures."""
    from confluent_kafka import libversion

    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": f"{os.cpu_count()} × {_processor()}",
        "memory": f"{memory_gb:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "kafka": KAFKA_VERSION,
        "librdkafka": libversion()[0],
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    names = [line for line in path.read_text().splitlines() if line.startswith("model name")] if path.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.machine()


def terminal(results: Iterable[Result]) -> Table:
    table = Table(*HEADINGS, title="kpybroker compared with Apache Kafka: median [smallest-largest]")
    for column in table.columns[2:7]:
        column.justify = "right"
    styles = {"goal": "bold green", "held": "green", "SHORT": "bold red", "": ""}
    for result in results:
        *cells, verdict = row(result)
        table.add_row(*cells, f"[{styles[verdict]}]{verdict}[/]" if verdict else "")
    return table


def markdown(results: Iterable[Result], around: dict[str, str]) -> str:
    lines = [
        f"{around['date']}; {around['processor']}, {around['memory']}; {around['system']}; CPython {around['python']}; "
        f"Apache Kafka {around['kafka']} with 1 GB of heap, warmed up; librdkafka {around['librdkafka']}. Clients, "
        "brokers and load share the machine. Median [smallest-largest] of the runs; *ratio* is kpybroker / Kafka.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
    ]
    lines += ["| " + " | ".join(row(result)) + " |" for result in results]
    return "\n".join(lines) + "\n"


def as_json(results: Iterable[Result], around: dict[str, str]) -> str:
    rows = [
        {
            "key": result.measure.key,
            "label": result.measure.label,
            "unit": result.measure.unit,
            "better": result.measure.better.value,
            "runs": result.runs,
            "ratio": result.ratio,
            "floor": result.measure.floor,
            "goal": result.measure.goal,
            "absolute": result.measure.absolute,
            "holds_floor": result.holds(result.measure.floor),
            "holds_goal": result.holds(result.measure.goal),
        }
        for result in results
    ]
    return json.dumps({**around, "rows": rows}, indent=1) + "\n"


def write(results: list[Result], directory: Path = RESULTS) -> list[Path]:
    """Write `latest.json` and `latest.md`. Returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    around = surroundings()
    texts = {"latest.json": as_json(results, around), "latest.md": markdown(results, around)}
    for name, text in texts.items():
        (directory / name).write_text(text)
    return [directory / name for name in texts]
