"""`python -m kpybroker.sim`: runs seeds, records failing seeds, and replays a seed."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kpybroker.sim.actors.catalog import actor_names, with_actors
from kpybroker.sim.cluster.setup import setup_of
from kpybroker.sim.simulation import RunOutcome, Simulation

TWICE_EVERY = 20
"""Every 20th seed is run again with a different hash seed, and must give the same run."""
FAILURES_SHOWN = 10


class Shape(NamedTuple):
    """The number of brokers, and the largest replication factor of topics."""

    brokers: int = 3
    replicas: int = 3
    actors: tuple[str, ...] = ()
    """Actors that take part in every seed that is suitable for them."""

    def arguments(self, seed: int) -> list[str]:
        """The arguments that replay the seed."""
        actors = ["--actors", ",".join(self.actors)] if self.actors else []
        return ["--seed", str(seed), "--brokers", str(self.brokers), "--replicas", str(self.replicas), *actors]

    def __str__(self) -> str:
        return f"{self.brokers} broker{'s' if self.brokers > 1 else ''}"


def run_seed(seed: int, shape: Shape, *, keeps_trace: bool = False) -> RunOutcome:
    """Run one seed with its actors, and return the outcome."""
    setup = with_actors(setup_of(seed, brokers=shape.brokers, replicas=shape.replicas), shape.actors)
    return Simulation(setup, keeps_trace=keeps_trace).run()


def digest_elsewhere(seed: int, shape: Shape, hash_seed: int) -> str:
    """The digest of the same run in another process with a different hash seed."""
    command = [sys.executable, "-m", "kpybroker.sim", *shape.arguments(seed), "--digest"]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def _checked(seed: int, shape: Shape) -> RunOutcome:
    outcome = run_seed(seed, shape)
    if seed % TWICE_EVERY == 0:
        again = digest_elsewhere(seed, shape, seed + 1)
        if again != f"{outcome.digest:08x}":
            outcome.breaches.append(f"the seed does not replay: {outcome.digest:08x} here, {again} elsewhere")
    return outcome


def _outcomes(seeds: range, shape: Shape, jobs: int) -> Iterator[RunOutcome]:
    if jobs == 1:
        for seed in seeds:
            yield _checked(seed, shape)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_checked, seeds, [shape] * len(seeds))


def keep_failure(outcome: RunOutcome, shape: Shape, folder: Path) -> Path:
    """Write a file with the arguments that replay the failure, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"seed-{outcome.seed}-brokers-{shape.brokers}.json"
    report = {
        "seed": outcome.seed,
        "brokers": shape.brokers,
        "replicas": shape.replicas,
        "sentence": outcome.breaches[0],
        "breaches": outcome.breaches,
        "digest": f"{outcome.digest:08x}",
        "counts": outcome.counts,
        "details": outcome.details,
        "replay": " ".join(["python -m kpybroker.sim", *shape.arguments(outcome.seed), "--trace"]),
    }
    file.write_text(json.dumps(report, indent=1) + "\n")
    return file


def run_many(seeds: range, shape: Shape, jobs: int, folder: Path) -> int:
    """Run all seeds, print a summary, and return how many failed."""
    console = Console(stderr=True)
    columns = (
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]} failed"),
    )
    failed, cpu_s, slowest_s, virtual_s, began = 0, 0.0, 0.0, 0.0, time.monotonic()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("seeds", total=len(seeds), failed=0)
        for outcome in _outcomes(seeds, shape, jobs):
            cpu_s += outcome.cpu_s
            virtual_s += outcome.virtual_s
            slowest_s = max(slowest_s, outcome.cpu_s)
            if outcome.breaches:
                failed += 1
                file = keep_failure(outcome, shape, folder)
                if failed <= FAILURES_SHOWN:
                    progress.console.print(f"seed {outcome.seed}: {outcome.breaches[0]}  [{file}]", markup=False)
            progress.update(bar, advance=1, failed=failed)
    passed = len(seeds) - failed
    print(
        f"{passed} of {len(seeds)} seeds passed: seeds {seeds.start} to {seeds.stop - 1}, {shape}, "
        f"{virtual_s / len(seeds):.0f} virtual seconds and "
        f"{cpu_s / len(seeds):.2f} s of CPU each ({slowest_s:.2f} s at most), {time.monotonic() - began:.0f} s in all"
    )
    return failed


def show(seed: int, shape: Shape, *, trace: bool) -> int:
    """Run one seed and print its result. Returns the exit status."""
    outcome = run_seed(seed, shape, keeps_trace=trace)
    for line in outcome.trace:
        print(line)
    for detail in outcome.details:
        print(detail)
    for breach in outcome.breaches:
        print(f"seed {seed}: {breach}")
    report = ", ".join(f"{what} {count}" for what, count in outcome.counts.items())
    print(
        f"seed {seed} {'FAILED' if outcome.breaches else 'passed'}: digest {outcome.digest:08x}, "
        f"{outcome.virtual_s:.0f} virtual seconds, {outcome.cpu_s:.2f} s of CPU; {report}"
    )
    return 1 if outcome.breaches else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kpybroker.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--brokers", type=int, default=Shape().brokers, help="nodes in the cluster; each is broker and controller"
    )
    parser.add_argument("--replicas", type=int, default=3, help="the largest replication factor of topics")
    parser.add_argument(
        "--actors", default="", help="actors that take part in every seed, separated by commas (default: at random)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many processes run seeds")
    parser.add_argument(
        "--failures", type=Path, default=Path(".cache/sim"), help="directory for reports of failing seeds"
    )
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happens")
    parser.add_argument("--digest", action="store_true", help="with --seed: print only the digest of the run")
    given = parser.parse_args()
    if min(given.seeds, given.brokers, given.replicas, given.jobs) < 1:
        parser.error("--seeds, --brokers, --replicas and --jobs must be at least 1")
    actors = tuple(name for name in given.actors.split(",") if name)
    if unknown := sorted(set(actors) - set(actor_names())):
        parser.error(f"there is no actor {unknown[0]}; there are {', '.join(actor_names())}")
    shape = Shape(given.brokers, given.replicas, actors)
    if given.seed is None:
        seeds = range(given.first, given.first + given.seeds)
        sys.exit(1 if run_many(seeds, shape, given.jobs, given.failures) else 0)
    if given.digest:
        print(f"{run_seed(given.seed, shape).digest:08x}")
        return
    sys.exit(show(given.seed, shape, trace=given.trace))


if __name__ == "__main__":
    main()
