"""Runs `kpybroker archive` and kills it and its JVM with -9 at random times."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kpybroker.spark import QUICK_JVM

ROOT = Path(__file__).resolve().parent.parent
LOOK_S = 0.01


def command(bootstrap: str, *arguments: str, quick: bool = True) -> list[str]:
    """The command line. `quick`: with JVM settings for short jobs."""
    settings = [word for name, value in QUICK_JVM.items() for word in ("--conf", f"{name}={value}")] if quick else []
    return [sys.executable, "-m", "kpybroker", "--bootstrap", bootstrap, "archive", *arguments, *settings]


def run_until(arguments: list[str], log: Path, it_is_time: Callable[[], bool]) -> bool:
    """Run a command in its own process group, and kill the group when `it_is_time` returns true. Returns False if the
    command ended before."""
    with (
        log.open("ab") as out,
        subprocess.Popen(arguments, cwd=ROOT, stdout=out, stderr=out, start_new_session=True) as job,
    ):
        try:
            while job.poll() is None and not it_is_time():
                time.sleep(LOOK_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    return job.returncode == -signal.SIGKILL


def paths_in(folder: Path) -> int:
    """The number of files and folders, which grows with every step of a run."""
    found = 0
    for _, folders, files in os.walk(folder):
        found += len(folders) + len(files)
    return found


def moment(folder: Path, chance: random.Random, steps: int) -> Callable[[], bool]:
    """A random moment in a run: the moment when a random number of paths, up to `steps`, has been added to the
    folder."""
    wanted = paths_in(folder) + chance.randint(1, steps)
    return lambda: paths_in(folder) >= wanted
