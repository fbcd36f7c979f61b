"""Starts and stops a broker in the background, for `dev --detach` and `kpybroker stop`.

Next to its data directory DIR are the files DIR.ready (the ready line as JSON) and DIR.log (the broker's output).
"""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kpybroker.errors import ConfigError
from kpybroker.storage.dirs.directory import LOCK
from kpybroker.world.processes import apart, ask_to_stop, is_running
from kpybroker.world.real import real_world

START_TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.02
SHOWN_BYTES = 4000


def ready_file(directory: Path) -> Path:
    """The ready file of a broker that was started with --detach."""
    return directory.with_name(directory.name + ".ready")


def log_file(directory: Path) -> Path:
    """The file with the output of a broker that was started with --detach."""
    return directory.with_name(directory.name + ".log")


def start(arguments: Sequence[str], directory: Path) -> None:
    """Start `kpybroker dev` with these arguments, and return when clients can connect. If the broker exits, exit with
    its code.

    Raises ConfigError.
    """
    directory = directory.absolute()
    ready, log = ready_file(directory), log_file(directory)
    if is_in_use(directory):
        stop_it = f"kpybroker stop --data-dir {shlex.quote(directory.as_posix())}"
        raise ConfigError(f"{directory} is in use by another kpybroker; `{stop_it}` stops it")
    command = [sys.executable, "-P", "-m", "kpybroker", *arguments, "--ready-file", str(ready)]
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        output = log.open("wb")
    except OSError as error:
        raise ConfigError(f"cannot write {log}: {error.strerror}; choose another --data-dir") from error
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited, so that closing the terminal does not stop it
    with output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **apart())
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        ended = process.poll()
        facts = _read(ready)
        if facts.get("pid") == process.pid:
            print("kpybroker ready", *(f"{name}={fact}" for name, fact in facts.items()), flush=True)
            return
        if ended is not None:
            print(_last_line(log) or f"kpybroker: exited with code {ended}; see {log}", file=sys.stderr)
            sys.exit(ended or 1)
        if time.monotonic() > deadline:
            process.terminate()
            process.wait()
            print(f"kpybroker: not ready after {START_TIMEOUT_S:g} s, and stopped; see {log}", file=sys.stderr)
            sys.exit(1)
        time.sleep(LOOK_EVERY_S)


def stop(directory: Path, timeout_s: float) -> str | None:
    """Stop the broker on `directory` and wait until it has ended. Returns None, or the reason why it cannot be
    stopped."""
    directory = directory.absolute()
    if not is_in_use(directory):
        return f"no broker runs on {directory}; name another with --data-dir"
    pid = _read(ready_file(directory)).get("pid")
    if not isinstance(pid, int):
        return f"the broker on {directory} was not started with --detach; stop it with Ctrl-C or SIGTERM"
    with contextlib.suppress(ProcessLookupError):  # the process has just ended
        ask_to_stop(pid)
    deadline = time.monotonic() + timeout_s
    # the broker removes its ready file last; a killed broker leaves it
    while is_in_use(directory) or (_read(ready_file(directory)).get("pid") == pid and is_running(pid)):
        if time.monotonic() > deadline:
            if not is_in_use(directory):
                return None
            return f"process {pid} is still running after {timeout_s:g} s; allow more time with --timeout"
        time.sleep(LOOK_EVERY_S)
    return None


def is_in_use(directory: Path) -> bool:
    """Whether a running broker holds the lock on this directory."""
    path = directory / LOCK
    if not path.exists():
        return False
    disk = real_world().disk
    try:
        disk.close(disk.lock(str(path)))
    except BlockingIOError:
        return True
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return False


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _last_line(path: Path) -> str:
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - SHOWN_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
    return lines[-1] if lines else ""
