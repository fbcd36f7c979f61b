"""`kpybroker dev` and `kpybroker serve`: settings together, a node up, one ready line, a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

from kpybroker.cli import early
from kpybroker.config import BrokerConfig, parse_properties, parse_setting
from kpybroker.errors import ConfigError
from kpybroker.server.node import Node
from kpybroker.world.real import real_world

DEV_DATA_DIR = Path("kpybroker-data")
DEV_DEFAULTS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.replication.factor": "1"}

GC_THRESHOLDS = (10_000, 20, 50)
MALLOC_TRIM_THRESHOLD, MALLOC_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""
KEPT_BYTES = 64 << 20


class Lifetime(NamedTuple):
    """Whom to tell when serving, and what besides a signal ends it."""

    ready_file: Path | None = None
    until_stdin_closes: bool = False


def dev(port: int, data_dir: Path | None, *, ephemeral: bool, settings: list[str], lifetime: Lifetime) -> None:
    """One node on 127.0.0.1 with defaults for a laptop. Raises ConfigError."""
    given = _parse_settings(settings)
    if ephemeral and "log.dirs" in given:
        raise ConfigError("--ephemeral and --set log.dirs exclude each other; give one of them")
    directory = Path(tempfile.mkdtemp(prefix="kpybroker-")) if ephemeral else (data_dir or DEV_DATA_DIR)
    properties = {
        **DEV_DEFAULTS,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(directory.absolute()),
        **given,
    }
    try:
        _run(BrokerConfig.parse(properties, "--set"), lifetime)
    finally:
        if ephemeral:
            shutil.rmtree(directory, ignore_errors=True)


def serve(config: Path | None, *, settings: list[str], lifetime: Lifetime) -> None:
    """One node from a properties file; --set wins over the file. Raises ConfigError."""
    properties: dict[str, str] = {}
    if config is not None:
        try:
            text = config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {config}: {error}; give --config a readable properties file") from error
        properties = dict(parse_properties(text, str(config)))
    properties.update(_parse_settings(settings))
    _run(BrokerConfig.parse(properties, str(config) if config is not None else "--set"), lifetime)


def _parse_settings(settings: list[str]) -> dict[str, str]:
    return dict(parse_setting(text) for text in settings)


def _run(config: BrokerConfig, lifetime: Lifetime) -> None:
    """Serve to the end. Exits with 1 where the node could not go on."""
    logging.basicConfig(
        level=_log_level(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if lifetime.ready_file is not None:
        _check_ready_file(lifetime.ready_file)
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    failure = asyncio.run(_serve(config, lifetime))
    if failure is not None:
        print(f"kpybroker: stopped: {failure}", file=sys.stderr)
        sys.exit(1)


def _log_level() -> str:
    level = os.environ.get("KPYBROKER_LOG", "WARNING").upper()
    if level not in logging.getLevelNamesMapping():
        raise ConfigError(f"KPYBROKER_LOG={level} is no level; write DEBUG, INFO, WARNING or ERROR")
    return level


def _check_ready_file(path: Path) -> None:
    """Refuse before anything is started what would fail when all is up. Raises ConfigError."""
    partial = _partial(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise ConfigError(
            f"cannot write --ready-file {path}: {error.strerror}; name a file that can be made"
        ) from error


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


class _Stop:
    """The wish to stop: from a signal or the end of stdin. A second signal does not wait for anything."""

    def __init__(self) -> None:
        self.wished = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._signals = 0

    def listen(self, *, until_stdin_closes: bool) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            # not the loop's own handlers: they would wait while the loop is busy, and so would the second signal
            signal.signal(number, self._on_signal)
        if early.was_asked_to_stop():
            self.wished.set()
        if until_stdin_closes:
            threading.Thread(target=self._read_stdin, daemon=True).start()

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(1)
        self._wish()

    def _wish(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self.wished.set)

    def _read_stdin(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        self._wish()


async def _serve(config: BrokerConfig, lifetime: Lifetime) -> str | None:
    """Serve until it is time to stop (None) or the node cannot go on (the reason). Raises ConfigError."""
    stop = _Stop()
    stop.listen(until_stdin_closes=lifetime.until_stdin_closes)
    stopped = asyncio.ensure_future(stop.wished.wait())
    starting = asyncio.ensure_future(Node.start(real_world(), config))
    await asyncio.wait([stopped, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        if starting.cancelled():
            return None
    node = starting.result()
    try:
        if not stopped.done():
            _tell(node, config, lifetime.ready_file)
            _calm_collector()
            _keep_freed_memory()
            waits: list[asyncio.Future[Any]] = [stopped, node.failed]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        await node.stop()
        if lifetime.ready_file is not None:
            with contextlib.suppress(OSError):
                lifetime.ready_file.unlink(missing_ok=True)
    return node.failed.result() if node.failed.done() else None


def _calm_collector() -> None:
    """What start-up made stays to the end: it need not be looked at again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _keep_freed_memory() -> None:
    """Tell glibc to keep what large replies free: else each gets its pages anew, which costs more than to copy them."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MALLOC_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(MALLOC_MMAP_THRESHOLD, KEPT_BYTES)


def _tell(node: Node, config: BrokerConfig, ready_file: Path | None) -> None:
    """Say that clients may come: one line on stdout, and the same as JSON in the file. Raises ConfigError."""
    data = ",".join(config.log_dirs)
    if ready_file is not None:
        told = json.dumps({"bootstrap": node.bootstrap, "data": data, "pid": os.getpid()})
        try:
            _partial(ready_file).write_text(told + "\n")
            _partial(ready_file).replace(ready_file)
        except OSError as error:
            raise ConfigError(f"cannot write --ready-file {ready_file}: {error.strerror}") from error
    with contextlib.suppress(BrokenPipeError):  # whoever started us need not listen
        print(f"kpybroker ready bootstrap={node.bootstrap} data={data} pid={os.getpid()}", flush=True)
