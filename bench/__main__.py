"""`python -m bench`: run the loads against both brokers in turn, print the table, write bench/results/."""

import compileall
import os
import resource
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import KafkaException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bench import (
    cleaning,
    cluster,
    consumer_groups,
    failover,
    fetch_raw,
    groups,
    history,
    java,
    latency,
    librdkafka,
    memory,
    produce_raw,
    report,
    restart,
    security,
    shares,
    spark,
    stalls,
    startup,
    topics,
    transactions,
    views,
)
from bench.brokers import NAMES, started
from bench.measure import Brokers, Case, LoadError, Measure, Result, Row, warm_up
from bench.noise import Slice, measured, quietest
from bench.target import Target
from kpybroker import errors
from oracle.target import NotStarted

FAMILIES = (
    startup,
    produce_raw,
    fetch_raw,
    librdkafka,
    java,
    latency,
    groups,
    consumer_groups,
    transactions,
    views,
    topics,
    cleaning,
    restart,
    security,
    shares,
    cluster,
    failover,
    spark,
)
FAILURES = (LoadError, NotStarted, KafkaException, OSError)
DESCRIPTORS = 8192
WARM_UP_SLICES_MAX = 10
REPEATS_MAX = 200
"""The most slices of one run that are repeated because of noise, so that a busy machine does not take hours."""
QUICK_WARM_UP_SLICES = 4
QUICK_REPEATS = 12

WIDTH = 180
"""The width of the table if the output is not a terminal."""

console = Console(width=None if sys.stdout.isatty() else WIDTH)


class Who(StrEnum):
    BOTH = "both"
    KPYBROKER = "kpybroker"
    KAFKA = "kafka"

    @property
    def names(self) -> list[str]:
        return list(NAMES) if self is Who.BOTH else [self.value]


class Session:
    """The cases of one run, their results so far, and failures."""

    def __init__(self, runs: int, progress: Progress, *, is_quick: bool = False) -> None:
        self.runs = runs
        self.warm_up_max = QUICK_WARM_UP_SLICES if is_quick else WARM_UP_SLICES_MAX
        self.repeats_left = QUICK_REPEATS if is_quick else REPEATS_MAX
        self.progress = progress
        self.results: list[Result] = []
        self.rows: list[Row] = []
        self.failures: list[str] = []

    def run(self, cases: list[Case], names: list[str]) -> None:
        """Run all cases, grouped by the brokers that they need. Within a case the brokers are measured in turn."""
        bar = self.progress.add_task("bench", total=len(cases))
        for kind in Brokers:
            wanted = [case for case in cases if case.brokers is kind]
            if not wanted:
                continue
            self.progress.update(bar, description=f"starting brokers ({kind.value})")
            if kind is Brokers.NONE:
                self._all(wanted, [Target(name, "", 0) for name in names], bar)
                continue
            # three idle JVMs take a tenth of this machine, so only one cluster runs at a time
            for together in [[name] for name in names] if kind is Brokers.CLUSTER else [names]:
                os.sync()  # so that the write-back of earlier data does not slow down the next case
                with started(together, kind) as targets:
                    self._all(wanted, targets, bar)

    def _all(self, cases: list[Case], targets: list[Target], bar: TaskID) -> None:
        for case in cases:
            apart = [target for target in targets if case.only in (None, target.name)]
            try:
                self._case(case, apart, bar)
            except FAILURES as error:  # keep the figures of the other cases
                self.failures.append(f"{case.name}: {error!r}")
            self.progress.advance(bar)
            self.progress.refresh()

    def _case(self, case: Case, targets: list[Target], bar: TaskID) -> None:
        results = {measure.key: self._result(measure) for measure in case.measures}
        row = self._row(case, list(results.values()))
        for target in targets:
            self._show(bar, case, target, "warming up")
            case.prepare(target)
            warm_up(case, target, self.warm_up_max)
        runs = case.runs or self.runs
        for run in range(runs):
            for target in targets:
                self._show(bar, case, target, f"run {run + 1} of {runs}")
                taken = self._quietest(case, target, row)
                row.noise.append(taken.noise)
                for key, value in taken.figures.items():
                    results[key].runs.setdefault(target.name, []).append(value)
        for target in targets:
            case.clean(target)

    def _quietest(self, case: Case, target: Target, row: Row) -> Slice[dict[str, float]]:
        """A slice that is repeated while it is noisy, as long as this run has repeats left."""
        taken = 0

        def take() -> Slice[dict[str, float]]:
            nonlocal taken
            taken += 1
            return self._slice(case, target, row)

        found = quietest(take, min(case.repeats, self.repeats_left))
        self.repeats_left -= taken - 1
        return found

    def _slice(self, case: Case, target: Target, row: Row) -> Slice[dict[str, float]]:
        """One slice, with its noise. The stalls of every slice count, even if it is repeated."""
        memory.touch(case.touched_bytes)
        before = stalls.scrape(target)
        taken = measured(lambda: case.slice(target))
        after = stalls.scrape(target)
        if before is not None and after is not None:
            row.stalled(after.since(before))
        return taken

    def _result(self, measure: Measure) -> Result:
        """The result row of a figure, created at its first use."""
        for result in self.results:
            if result.measure.key == measure.key:
                return result
        self.results.append(Result(measure))
        return self.results[-1]

    def _row(self, case: Case, results: list[Result]) -> Row:
        """The row of a load, created at its first use: in clusters, a load runs on one broker after the other."""
        for row in self.rows:
            if row.name == case.name:
                return row
        self.rows.append(Row(case.name, results))
        return self.rows[-1]

    def _show(self, bar: TaskID, case: Case, target: Target, what: str) -> None:
        """Draw the display, only between slices, so that it does not disturb measurements."""
        self.progress.update(bar, description=f"{case.name}: {target.name}, {what}")
        self.progress.refresh()


def main(
    only: Annotated[str, typer.Option(help="Run the cases whose name or family contains one of these words.")] = "",
    runs: Annotated[int, typer.Option(min=1, help="Measured slices per case and broker.")] = 3,
    target: Annotated[Who, typer.Option(help="Which broker.")] = Who.BOTH,
    quick: Annotated[bool, typer.Option("--quick", help="Only the loads that matter most.")] = False,
    write: Annotated[
        bool | None,
        typer.Option(
            help="Add the figures to bench/results/history.jsonl, and write latest.json and latest.md unless --quick; "
            "default: only with all loads, or all of --quick, on both brokers."
        ),
    ] = None,
) -> None:
    """The same load against kpybroker and Apache Kafka. `python -m bench.plot` draws the history."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
    # as pip does: otherwise a start from a clone would spend most of its time on compiling
    compileall.compile_dir(Path(errors.__file__).parent, quiet=1)
    words = only.replace(",", " ").split()
    cases = [case for family in FAMILIES for case in family.cases()]
    cases = [case for case in cases if case.is_quick or not quick]
    cases = [case for case in cases if not words or any(word in case.name or word == case.family for word in words)]
    if not cases:
        raise typer.BadParameter(f"no case's name or family contains {only!r}", param_hint="--only")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        session = Session(runs, progress, is_quick=quick)
        session.run(cases, target.names)
    console.print(report.loads(session.rows))
    if not quick:
        console.print(report.terminal(session.results))
    for failure in session.failures:
        console.print(f"[bold red]failed[/] {failure}", markup=True)
    if write if write is not None else not words and target is Who.BOTH:
        around = report.surroundings()
        written = [history.append(history.line(session.rows, around, is_quick=quick))]
        if not quick:
            written += report.write(session.results, session.rows, around)
        console.print("written:", *(str(path.resolve()) for path in written))  # a link, if bench.compiled runs this
    short = [result for result in session.results if result.holds(result.measure.floor) is False]
    console.print(f"{len(short)} of {sum(r.measure.floor is not None for r in session.results)} floors not held")
    raise typer.Exit(1 if session.failures else 0)


if __name__ == "__main__":
    typer.run(main)
