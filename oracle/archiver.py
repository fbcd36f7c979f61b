"""`kpybroker archive` as a process that dies by kill -9, its JVM too, at moments that a seed chooses."""

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
    """The command line; `quick` has a JVM for jobs of a minute."""
    settings = [word for name, value in QUICK_JVM.items() for word in ("--conf", f"{name}={value}")] if quick else []
    return [sys.executable, "-m", "kpybroker", "--bootstrap", bootstrap, "archive", *arguments, *settings]


def run_until(arguments: list[str], log: Path, it_is_time: Callable[[], bool]) -> bool:
    """Run a command in a process group of its own, and kill all of it when it is time; whether it had not ended yet."""
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
    """How many files and folders there are now; it grows with every step of a run."""
    found = 0
    for _, folders, files in os.walk(folder):
        found += len(folders) + len(files)
    return found


def moment(folder: Path, chance: random.Random, steps: int) -> Callable[[], bool]:
    """A moment of a run: when the folder has so many paths more than now, at most `steps`."""
    wanted = paths_in(folder) + chance.randint(1, steps)
    return lambda: paths_in(folder) >= wanted
