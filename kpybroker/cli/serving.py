"""`kpybroker dev` and `kpybroker serve`: settings together, a node up, one ready line, a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from kpybroker.config import BrokerConfig, parse_properties, parse_setting
from kpybroker.errors import ConfigError
from kpybroker.server.node import Node
from kpybroker.world.real import real_world

DEV_DATA_DIR = Path("kpybroker-data")
DEV_DEFAULTS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.replication.factor": "1"}


def dev(port: int, data_dir: Path | None, *, ephemeral: bool, settings: list[str], ready_file: Path | None) -> None:
    """One node on 127.0.0.1 with defaults for a laptop."""
    if ephemeral and data_dir is not None:
        raise ConfigError("--ephemeral and --data-dir exclude each other; give one of them")
    directory = Path(tempfile.mkdtemp(prefix="kpybroker-")) if ephemeral else (data_dir or DEV_DATA_DIR)
    properties = {
        **DEV_DEFAULTS,
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(directory.absolute()),
        **_parse_settings(settings),
    }
    try:
        _run(BrokerConfig.parse(properties, "--set"), ready_file)
    finally:
        if ephemeral:
            shutil.rmtree(directory, ignore_errors=True)


def serve(config: Path | None, *, settings: list[str], ready_file: Path | None) -> None:
    """One node from a properties file; --set wins over the file."""
    properties: dict[str, str] = {}
    if config is not None:
        try:
            text = config.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {config}: {error}; give --config a readable properties file") from error
        properties = dict(parse_properties(text, str(config)))
    properties.update(_parse_settings(settings))
    _run(BrokerConfig.parse(properties, str(config) if config is not None else "--set"), ready_file)


def _parse_settings(settings: list[str]) -> dict[str, str]:
    return dict(parse_setting(text) for text in settings)


def _run(config: BrokerConfig, ready_file: Path | None) -> None:
    logging.basicConfig(
        level=os.environ.get("KPYBROKER_LOG", "WARNING").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    failure = asyncio.run(_serve(config, ready_file))
    if failure is not None:
        print(f"kpybroker: stopped: {failure}", file=sys.stderr)
        sys.exit(1)


async def _serve(config: BrokerConfig, ready_file: Path | None) -> str | None:
    """Serve until a signal comes (None) or the node cannot go on (the reason)."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    node = await Node.start(real_world(), config)
    _say_ready(node, config, ready_file)
    stopped = asyncio.ensure_future(stop.wait())
    waits: list[asyncio.Future[Any]] = [stopped, node.failed]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    await node.stop()
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)
    return node.failed.result() if node.failed.done() else None


def _say_ready(node: Node, config: BrokerConfig, ready_file: Path | None) -> None:
    data = ",".join(config.log_dirs)
    print(f"kpybroker ready bootstrap={node.bootstrap} data={data} pid={os.getpid()}", flush=True)
    if ready_file is not None:
        told = json.dumps({"bootstrap": node.bootstrap, "data": data, "pid": os.getpid()})
        partial = ready_file.with_name(ready_file.name + ".partial")
        partial.write_text(told + "\n")
        partial.replace(ready_file)
