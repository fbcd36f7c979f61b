"""`python -m kpybroker.sim.covered`: measures how much of the product's core code simulated seeds run.

Prints the percentage of lines of `replication`, `raft` and `groups` that ran and, with --missed, the lines that did not
run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from coverage import Coverage
from rich.console import Console
from rich.progress import track
from rich.table import Table

PACKAGES = ("replication", "raft", "groups")
WANTED = 85.0
"""The required percentage of lines of each package."""


def measure(seeds: range, brokers: int) -> Coverage:
    """Run the seeds. Every third seed has a single broker, because this runs code that larger clusters do not run."""
    covered = Coverage(data_file=None, source_pkgs=[f"kpybroker.{package}" for package in PACKAGES])
    covered.start()
    from kpybroker.sim.actors.catalog import with_actors
    from kpybroker.sim.cluster.setup import setup_of
    from kpybroker.sim.simulation import Simulation

    for seed in track(seeds, "seeds", console=Console(stderr=True)):
        Simulation(with_actors(setup_of(seed, brokers=1 if seed % 3 == 2 else brokers))).run()
    covered.stop()
    return covered


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kpybroker.sim.covered", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--missed", action="store_true", help="print the lines that did not run")
    given = parser.parse_args()
    covered = measure(range(given.first, given.first + given.seeds), given.brokers)
    data = covered.get_data()
    table = Table("module", "lines", "reached", "%")
    lines = dict.fromkeys(PACKAGES, 0)
    reached = dict.fromkeys(PACKAGES, 0)
    for name in sorted(data.measured_files()):
        package = Path(name).parent.name
        _, statements, _, missing, missing_text = covered.analysis2(name)
        if package not in lines or not statements:
            continue
        lines[package] += len(statements)
        reached[package] += len(statements) - len(missing)
        if given.missed and missing:
            print(f"{package}/{Path(name).name}: {missing_text}")
    for package in PACKAGES:
        share = 100 * reached[package] / max(lines[package], 1)
        table.add_row(package, str(lines[package]), str(reached[package]), f"{share:.1f}")
    Console(width=80).print(table)
    least = min(100 * reached[package] / max(lines[package], 1) for package in PACKAGES)
    print(f"{given.seeds} seeds reach at least {least:.1f} % of each package; {WANTED:.0f} % are wanted")
    sys.exit(0 if least >= WANTED else 1)


if __name__ == "__main__":
    main()
