"""Starts a local kpybroker for the duration of a `with` block."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kpybroker.errors import ConfigError
from kpybroker.spark import Cluster


@contextlib.contextmanager
def local_broker(data_dir: Path, log: Path) -> Iterator[Cluster]:
    """Start `kpybroker dev` on a free port with its data under `data_dir`. Yields its address."""
    command = [sys.executable, "-m", "kpybroker", "dev", "--port", "0", "--data-dir", str(data_dir)]
    with (
        log.open("ab") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as broker,
    ):
        try:
            yield Cluster(_bootstrap(broker, log))
        finally:
            broker.send_signal(signal.SIGTERM)


def _bootstrap(broker: subprocess.Popen[str], log: Path) -> str:
    assert broker.stdout is not None
    for line in broker.stdout:
        if line.startswith("kpybroker ready "):
            return dict(word.split("=", 1) for word in line.split()[2:])["bootstrap"]
    raise ConfigError(f"the broker stopped before it was ready; see {log}")
