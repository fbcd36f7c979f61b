"""Hours of mixed load on one broker: does its memory stay flat, does it stay alive, and is every record kept?

`python -m bench.endurance --minutes 60 [--target kafka]` starts a broker with small segments, short retention and
frequent cleaning, and keeps the load of bench/mixed.py. It exits with 1 if the broker ended, a record is missing, or
the memory of the last quarter exceeds that of the second quarter by more than GROWTH_MAX.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression, median
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import control
from bench.brokers import NAMES, broker
from bench.mixed import Mixed
from bench.target import Target

GROWTH_MAX = 0.1
SAMPLE_S = 10.0
SAMPLES_MIN = 24
PATIENCE_S = 120.0
SETTINGS = {
    "auto.create.topics.enable": "false",  # librdkafka asks again for deleted topics, which would create them again
    "log.retention.check.interval.ms": "5000",
    "log.cleaner.backoff.ms": "2000",
    "offsets.topic.segment.bytes": str(1 << 20),
    "transaction.state.log.segment.bytes": str(1 << 20),
    "share.coordinator.state.topic.segment.bytes": str(1 << 20),
    "metadata.log.max.record.bytes.between.snapshots": str(256 << 10),
    "log.segment.delete.delay.ms": "1000",
}
SEVERE = ("WARN", "ERROR", "FATAL", "CRITICAL", "Traceback", "Fatal")
"""Words in lines of a broker's log that are reported."""
LINES_MAX = 50


class Sample(NamedTuple):
    """The broker's process at one moment; `cpu_s` counts since its start."""

    at_s: float
    resident_mb: float
    files: int
    cpu_s: float


class Row(NamedTuple):
    """A figure of the table: medians of quarters of the run, and the slope per hour after the first quarter."""

    name: str
    first: float
    second: float
    last: float
    slope: float

    @property
    def growth(self) -> float:
        """From the second quarter, when caches are full, to the last."""
        return self.last / self.second - 1


def sampled(target: Target, began_s: float) -> Sample:
    """Raises OSError if the broker has ended."""
    files = len(os.listdir(f"/proc/{target.pid}/fd"))
    return Sample(time.monotonic() - began_s, target.resident_bytes() / 1e6, files, target.cpu().total_s)


def row(name: str, points: Sequence[tuple[float, float]]) -> Row:
    """points: at least eight pairs of seconds and a value, in order of time."""
    quarter = len(points) // 4
    parts = (points[:quarter], points[quarter : 2 * quarter], points[-quarter:])
    times, values = zip(*points[quarter:], strict=True)
    return Row(
        name, *(median(value for _, value in part) for part in parts), linear_regression(times, values)[0] * 3600
    )


def rows(samples: Sequence[Sample]) -> list[Row]:
    """Memory, open files and CPU."""
    used = [
        (later.at_s, 100 * (later.cpu_s - earlier.cpu_s) / (later.at_s - earlier.at_s))
        for earlier, later in pairwise(samples)
    ]
    return [
        row("resident memory, MB", [(each.at_s, each.resident_mb) for each in samples]),
        row("open files", [(each.at_s, float(each.files)) for each in samples]),
        row("CPU, % of a core", used),
    ]


def severe(log: str) -> list[str]:
    """The lines at WARNING and above."""
    return [line for line in log.splitlines() if any(word in line for word in SEVERE)]


def loaded(mixed: Mixed, minutes: float, is_running: Callable[[], bool], console: Console) -> list[Sample]:
    """Keep the load for this time, or until the broker ends, and sample the broker."""
    samples: list[Sample] = []
    began_s, total_s = time.monotonic(), minutes * 60
    every_s = min(SAMPLE_S, total_s / SAMPLES_MIN)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting", total=total_s)
        mixed.begin()
        while (now_s := time.monotonic() - began_s) < total_s and is_running():
            try:
                sample = sampled(mixed.target, began_s)
            except (OSError, RuntimeError):
                break  # it has just ended
            samples.append(sample)
            about = f"{sample.resident_mb:.0f} MB, {sample.files} files, {sum(mixed.errors.values())} errors"
            progress.update(bar, completed=now_s, description=about)
            mixed.writing_ends.wait(every_s)
        progress.update(bar, description="reading the rest")
        mixed.end(PATIENCE_S if is_running() else 0.0)
    return samples


def show(console: Console, found: list[Row], mixed: Mixed, lines: list[str]) -> None:
    table = Table("figure", "first quarter", "second quarter", "last quarter", "slope per hour")
    for each in found:
        table.add_row(each.name, *(f"{value:,.1f}" for value in each[1:4]), f"{each.slope:+,.1f}")
    console.print(table)
    for what, count in sorted(mixed.done.items()):
        console.print(f"{count:,} {what}")
    for error, count in mixed.errors.most_common():
        console.print(f"ERROR of a client, {count} times: {error}", markup=False)
    console.print(
        f"{sum(mixed.errors.values())} errors of clients, {len(lines)} lines of the broker at WARNING and above"
    )
    for line in lines[:LINES_MAX]:
        console.print(f"LOG {line}", markup=False)


def main() -> int:
    """Run, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.endurance", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--target", choices=NAMES, default="kpybroker")
    parser.add_argument("--rate", type=int, default=50, help="steps of each producer per second")
    parser.add_argument("--samples", type=Path, help="write all samples to this file, as lines of JSON")
    given = parser.parse_args()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    faults: list[str] = []
    directory = Path(tempfile.mkdtemp(prefix="endurance-"))
    with broker(given.target, SETTINGS, directory) as server:
        mixed = Mixed(Target(given.target, server.bootstrap, server.pid), given.rate)
        samples = loaded(mixed, given.minutes, lambda: server.running, console)
        if server.running:
            faults += mixed.lost()
            mixed.done["records deleted by retention"] = mixed.deleted()
        else:
            faults.append("the broker ended during the load")
        control.forget()
        if status := server.stop():
            faults.append(f"the broker's exit status is {status}")
        lines = severe(server.output.read_text(errors="replace"))
    if given.samples:
        given.samples.write_text("".join(json.dumps(each._asdict()) + "\n" for each in samples))
    found = rows(samples) if len(samples) > SAMPLES_MIN // 2 else []
    show(console, found, mixed, lines)
    if found and found[0].growth > GROWTH_MAX:
        faults.append(f"memory grew by {found[0].growth:.0%} after the second quarter")
    for fault in faults:
        console.print(f"FAULT {fault}", markup=False)
    console.print(f"{given.minutes:g} minutes on {given.target}: {len(faults)} faults")
    if faults:
        console.print(f"files are kept in {directory}")
    else:
        shutil.rmtree(directory)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
