"""`python -m chaos --minutes 20`: injects faults into a cluster of three real nodes, and prints all violations of its
guarantees."""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from chaos.run import KAFKA_NODES, MIXED, Report, Run, not_done
from oracle.takeover import KAFKA, KPYBROKER

FULL_MINUTES = 20
DESCRIPTORS = 256
ERRORS_SHOWN = 30
FULL = {"kills": 50, "partitions": 25, "slow disks": 20, "acknowledged": 800_000}
"""The minimum figures that a run of FULL_MINUTES must reach."""


def main(arguments: list[str] | None = None) -> int:
    """Run, and return the exit status: 0 without a violation, else 1."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--target", choices=(KPYBROKER, KAFKA, MIXED), default=KPYBROKER)
    parser.add_argument(
        "--kafka",
        type=int,
        default=KAFKA_NODES,
        help=f"number of nodes of a mixed cluster that are Apache Kafka ({KAFKA_NODES})",
    )
    parser.add_argument(
        "--controllers", type=int, default=0, help="number of separate controllers (0: brokers are controllers)"
    )
    parser.add_argument("--seed", type=int, default=None, help="seed of the faults (default: random)")
    parser.add_argument(
        "--descriptors",
        type=int,
        default=DESCRIPTORS,
        help=f"limit of open files of each kpybroker node ({DESCRIPTORS}; 0: no limit)",
    )
    parser.add_argument("--secure", action="store_true", help="TLS, logins and ACLs, and faults that concern them")
    parser.add_argument("--keep", action="store_true", help="always keep the nodes' directories and logs")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else int(time.time())
    directory = Path(tempfile.mkdtemp(prefix=f"chaos-{given.target}-"))
    console = Console(highlight=False)
    kind = f"{given.target}, secured" if given.secure else given.target
    console.print(f"{kind}, seed {seed}, {given.minutes:g} minutes, in {directory}")
    began_s = time.monotonic()
    with (directory / "chaos.log").open("w", buffering=1) as log, console.status("starting") as status:

        def told(line: str) -> None:
            at_s = time.monotonic() - began_s
            log.write(f"{time.strftime('%H:%M:%S')} {at_s:8.2f} {line}\n")
            if not line.startswith(" "):
                counted = ", ".join(f"{count} {what}" for what, count in sorted(run.nemesis.counted.items()))
                status.update(f"{at_s / 60:.1f} of {given.minutes:g} minutes: {counted}; now: {line}")
                if line.startswith(("calm", "INCIDENT")):
                    console.print(f"{at_s:6.0f} s  {line}; {counted}")

        run = Run(
            given.target,
            seed,
            directory,
            told,
            given.controllers,
            given.descriptors,
            secure=given.secure,
            kafka_nodes=given.kafka,
        )
        kinds = ", ".join(f"{node_id} {kind}" for node_id, kind in run.kinds.items())
        console.print(f"nodes: {kinds}")
        report = run.play(given.minutes * 60)
    missing = not_done(report, FULL) if given.minutes >= FULL_MINUTES else []
    show(console, report, missing)
    if report.violations or given.keep:
        console.print(f"files are kept in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if report.violations or missing else 0


def show(console: Console, report: Report, missing: list[str]) -> None:
    counted = ", ".join(f"{count} {what}" for what, count in sorted(report.counted.items()))
    console.print(
        f"{report.acknowledged:,} records acknowledged, {report.read:,} read, {report.latest_answers:,} latest offsets "
        f"returned; {counted}; longest recovery {report.longest_recovery_s:.1f} s"
    )
    console.print(
        f"acks=all waited for at most {report.longest_silence_s:.2f} s while a majority was healthy, and for "
        f"{report.longest_in_trouble_s:.2f} s under faults"
    )
    if report.changes:
        console.print(
            f"{report.changes} changes of rights and passwords; {report.decisions:,} responses to a user who is "
            f"denied at times, {report.guesses:,} to logins with passwords that are valid at times"
        )
    if report.shared:
        console.print(f"{report.shared:,} records accepted by the share group")
    if report.repeated:
        console.print(f"{report.repeated} records repeated in a new producer epoch, as clients may do (KIP-360)")
    if report.falls:
        console.print(f"{report.falls} fatal errors of librdkafka after Apache Kafka refused a sequence number")
    for (kind, error), count in report.errors.most_common(ERRORS_SHOWN):
        console.print(f"{kind} logged {count} times: {error}", markup=False)
    for what in missing:
        console.print(f"too few faults: {what}")
    for violation in report.violations:
        console.print(f"VIOLATION {violation.kind.name}: {violation.text}", markup=False)
    console.print(f"{len(report.violations)} violations")


if __name__ == "__main__":
    sys.exit(main())
