"""`kpybroker storage check` and `repair`: find and repair damage in a stopped broker's directory."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from kpybroker.cli.show import remark, show_json, show_line, show_table
from kpybroker.client.client import CommandFailed
from kpybroker.errors import Damage
from kpybroker.storage.dirs.directory import LOCK
from kpybroker.storage.dirs.formatting import META_PROPERTIES
from kpybroker.storage.files.segment import LOG
from kpybroker.storage.repair import repairing
from kpybroker.storage.repair.checking import (
    Checked,
    Finding,
    Marks,
    check_directory,
    check_partition,
    partitions_of,
)
from kpybroker.topics import TopicPartition
from kpybroker.world import World
from kpybroker.world.real import real_world


class CheckScope(NamedTuple):
    """The options of a check."""

    path: str
    topic: str | None = None
    partition: int | None = None


class Report(NamedTuple):
    """The findings in the directory itself, and in each damaged partition."""

    directory: Checked
    marks: Marks
    partitions: dict[TopicPartition, Checked]

    def findings(self) -> list[Finding]:
        """All findings."""
        return [*self.directory.findings, *(one for each in self.partitions.values() for one in each.findings)]


@contextmanager
def locked(directory: Path) -> Iterator[tuple[World, str]]:
    """Hold the lock of a data directory. Raises CommandFailed."""
    path = directory.absolute().as_posix()
    world = real_world()
    if not os.path.isdir(path) or not any(os.path.exists(f"{path}/{name}") for name in (META_PROPERTIES, LOCK)):
        raise CommandFailed(f"{path} is not a broker's data directory; name one of log.dirs, or that of --data-dir")
    try:
        lock = world.disk.lock(f"{path}/{LOCK}")
    except BlockingIOError:
        raise CommandFailed(f"{path} is in use by a broker; stop it first") from None
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror or error}") from error
    try:
        yield world, path
    except OSError as error:
        raise CommandFailed(f"cannot continue: {error}") from error
    finally:
        world.disk.close(lock)


def look(world: World, wanted: CheckScope) -> Report:
    """Check all files of the partitions in the scope. Raises OSError."""
    directory, marks = check_directory(world, wanted.path)
    keys = partitions_of(world, wanted.path, wanted.topic, wanted.partition)
    total = sum(_log_bytes(f"{wanted.path}/{topic}-{index}") for topic, index in keys)
    bad = {}
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading", total=total)
        for key in keys:
            found = check_partition(world, wanted.path, key, marks, lambda size: bar.advance(task, size))
            if found.findings:
                bad[key] = found
    return Report(directory, marks, bad)


def _log_bytes(directory: str) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.name.endswith(LOG))


def show(report: Report, path: str, *, as_json: bool) -> None:
    """Print the findings as a table or as JSON."""
    findings = report.findings()
    if as_json:
        show_json([one._asdict() for one in findings])
        return
    rows = [
        (
            one.path.removeprefix(f"{path}/"),
            one.position if one.position >= 0 else None,
            one.offset if one.offset >= 0 else None,
            one.text.replace(f"{path}/", ""),
        )
        for one in findings
    ]
    if rows:
        show_table(("FILE", "POSITION", "OFFSET", "FINDING"), rows, folds=3)
    else:
        show_line(f"{path}: no problems found")


def check(directory: Path, topic: str | None, partition: int | None, *, as_json: bool) -> bool:
    """Print the findings. Returns whether there are any. Raises CommandFailed."""
    with locked(directory) as (world, path):
        report = look(world, CheckScope(path, topic, partition))
        show(report, path, as_json=as_json)
        return bool(report.findings())


def repair(directory: Path, topic: str | None, partition: int | None, *, does: bool) -> bool:
    """Print the plan of the repair, and carry it out if `does`. Returns whether problems remain. Raises
    CommandFailed."""
    with locked(directory) as (world, path):
        report = look(world, CheckScope(path, topic, partition))
        if not report.findings():
            show_line(f"{path}: no problems found")
            return False
        aside = f"{path}.set-aside/{time.strftime('%Y%m%dT%H%M%S', time.gmtime(world.wall_ms() / 1000))}"
        left = [one for one in report.directory.findings if one.path not in report.directory.unreadable]
        by_hand = [f"{one.path}: {one.text}" for one in left]
        for file in report.directory.unreadable:
            show_line(f"set {file} aside; the broker creates it again")
        mendable = {}
        for key, checked in report.partitions.items():
            why = repairing.way_out(checked, key)
            if why is not None:
                by_hand.append(f"{checked.path}: {why}")
                continue
            mendable[key] = checked
            for line in repairing.plan(checked):
                show_line(line)
        for line in by_hand:
            remark(f"by hand: {line}")
        if not does:
            remark(f"nothing was changed; --yes repairs it, and keeps replaced files in {aside}")
            return True
        _mend(world, path, report, mendable, aside)
        show_line(f"done; replaced files are in {aside}")
        return bool(by_hand)


def _mend(world: World, path: str, report: Report, mendable: dict[TopicPartition, Checked], aside: str) -> None:
    repairing.set_aside(world, report.directory, aside)
    ends = {}
    for key, checked in mendable.items():
        try:
            ends[key] = repairing.repair_partition(world, path, key, checked, report.marks, aside)
        except Damage as damage:
            raise CommandFailed(f"{checked.path} could not be repaired: {damage}") from damage
        finally:
            repairing.note_ends(world, path, report.marks, ends)
