"""Formats the figures as tables for the terminal, as Markdown for docs/benchmarks.md, and as JSON."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

import kpybroker
from bench.measure import Better, Result, Row, Spread
from oracle.jars import KAFKA_VERSION

RESULTS = Path(__file__).resolve().parent / "results"
HEADINGS = ("measurement", "unit", "kpybroker", f"Kafka {KAFKA_VERSION}", "ratio", "floor", "goal", "")
LOADS = (
    "load and figures",
    "unit",
    "kpybroker",
    f"Kafka {KAFKA_VERSION}",
    "ratio",
    "others",
    "stolen",
    "worst stall",
)
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


def figure(result: Result, target: str) -> str:
    """A spread; CPU of the broker as its sum, and the user and system time that add up to it."""
    found, user = result.spread(target), result.user_share(target)
    if found is None or user is None:
        return spread(found)
    total, _, range_ = spread(found).partition(" ")
    parts = f"{total} = {number(found.median * user)} + {number(found.median * (1 - user))}"
    return f"{parts} {range_}".rstrip()


def ratio(result: Result) -> str:
    """The ratio of the medians, with the smallest and the largest ratio of two slices of one run."""
    if result.ratio is None or result.ratios is None:
        return "–"
    shown, found = shown_ratio(result.ratio), result.ratios
    return shown if found.low == found.high else f"{shown} [{shown_ratio(found.low)}-{shown_ratio(found.high)}]"


def of_load(load: Row) -> list[tuple[str, ...]]:
    """A line for each figure, with CPU first. The first line has the name of the load, the noise and the stalls."""
    noise, title = load.worst_noise, load.results[0].measure.label
    last = (
        f"{noise.others:.0%}" + (" noisy" if load.is_noisy else ""),
        f"{noise.stolen:.1%}",
        "–" if load.stalls is None else str(load.stalls),
    )
    lines = []
    for result in load.by_cost:
        measure = result.measure
        if measure.label == title:
            label = title if not lines else "… rate" if measure.better is Better.HIGHER else "… time"
        else:
            label = measure.label if lines else measure.label.replace("…", f"{title}:", 1)
        lines.append((label, measure.unit, figure(result, "kpybroker"), figure(result, "kafka"), ratio(result), *last))
        last = ("", "", "")
    return lines


def mark(result: Result) -> str:
    """ "goal", "held" or "SHORT"; empty without a floor."""
    measure = result.measure
    if result.holds(measure.goal):
        return "goal"
    return _MARKS[result.holds(measure.floor)]


def row(result: Result) -> tuple[str, ...]:
    measure = result.measure
    bounds = tuple("–" if bound is None else f"{bound:g}" for bound in (measure.floor, measure.goal))
    figures = (spread(result.spread("kpybroker")), spread(result.spread("kafka")))
    return (measure.label, measure.unit, *figures, ratio(result), *bounds, mark(result))


def surroundings() -> dict[str, str]:
    """The commit, the machine and the versions of all software, which belong to the figures."""
    from confluent_kafka import libversion

    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "build": kpybroker.BUILD.partition(":")[0],
        "processor": f"{os.cpu_count()} × {_processor()}",
        "memory": f"{memory_gb:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": _python(),
        "kafka": KAFKA_VERSION,
        "librdkafka": libversion()[0],
    }


def _commit() -> str:
    """The commit of the sources, with "+" if they differ from it; empty outside a clone."""
    git = ["git", "-C", str(RESULTS.parent)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "../kpybroker"], check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit.stdout.strip() + "+" * bool(changed)


def _python() -> str:
    """The version of CPython, and whether it is in a shared library, which is slower than an executable."""
    maps = Path("/proc/self/maps")
    is_shared = maps.exists() and "/libpython" in maps.read_text(encoding="utf-8")
    return platform.python_version() + " (shared library)" * is_shared


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    names = [line for line in path.read_text().splitlines() if line.startswith("model name")] if path.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.machine()


def loads(rows: Iterable[Row]) -> Table:
    """The figures by load, with the broker's CPU first."""
    title = "median \\[smallest-largest]; CPU = user + system; others and stolen: the worst slice that counts"
    table = Table(*LOADS, title=title)
    for column in table.columns[2:7]:
        column.justify = "right"
    for load in rows:
        for number_, line in enumerate(of_load(load)):
            table.add_row(*line, style="yellow" if load.is_noisy else "bold" if number_ == 0 else "")
    return table


def terminal(results: Iterable[Result]) -> Table:
    table = Table(*HEADINGS, title="kpybroker compared with Apache Kafka: median \\[smallest-largest]")
    for column in table.columns[2:7]:
        column.justify = "right"
    styles = {"goal": "bold green", "held": "green", "SHORT": "bold red", "": ""}
    for result in results:
        *cells, verdict = row(result)
        table.add_row(*cells, f"[{styles[verdict]}]{verdict}[/]" if verdict else "")
    return table


def markdown(results: Iterable[Result], rows: Iterable[Row], around: dict[str, str]) -> str:
    """The table with the bounds, and the table of the loads."""
    lines = [
        f"{around['date']}, commit {around['commit']} ({around['build']}); {around['processor']}, {around['memory']}; "
        f"{around['system']}; CPython {around['python']}; Apache Kafka {around['kafka']} with 1 GB of heap, warmed up; "
        f"librdkafka {around['librdkafka']}. Clients, brokers and load share the machine. Median [smallest-largest] of "
        "the runs; *ratio* is kpybroker / Kafka.",
        "",
        *_table(HEADINGS, (row(result) for result in results)),
        "",
        "*others* and *stolen*: the CPU that other processes and the host took from the worst slice.",
        "",
        *_table(LOADS, (line for load in rows for line in of_load(load))),
    ]
    return "\n".join(lines) + "\n"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = (headings, ["---"] * len(headings), *rows)
    return ["|" + "|".join(cells) + "|" if cells[0] == "---" else "| " + " | ".join(cells) + " |" for cells in lines]


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


def write(results: list[Result], rows: list[Row], around: dict[str, str], directory: Path = RESULTS) -> list[Path]:
    """Write `latest.json` and `latest.md`. Returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {"latest.json": as_json(results, around), "latest.md": markdown(results, rows, around)}
    for name, text in texts.items():
        (directory / name).write_text(text)
    return [directory / name for name in texts]
