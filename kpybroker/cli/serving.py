"""Runs `kpybroker dev` and `serve`: reads the settings, starts the nodes, prints the ready line, stops cleanly."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kpybroker.cli import early, process_memory
from kpybroker.cli.derived_nodes import derive_nodes
from kpybroker.cli.descriptors import set_descriptor_limits
from kpybroker.cli.environment import read_environment
from kpybroker.cli.lifetime import (
    CONTRADICTED,
    Facts,
    Lifetime,
    Stop,
    end_with,
    log_build,
    prepare,
    remove_ready_file,
    report_ready,
    say,
)
from kpybroker.cli.local_cluster import (
    AUTO,
    DEV_DEFAULTS,
    LocalClusterOptions,
    check_alone,
    for_cores,
)
from kpybroker.cli.several import IN_USE, Several, dev_several, run
from kpybroker.config import BrokerConfig, parse_config, parse_setting
from kpybroker.config.own_keys import JSON
from kpybroker.config.property_files import read_properties
from kpybroker.errors import ConfigError
from kpybroker.metadata.chronicle import CHRONICLE
from kpybroker.security.audit import AUDIT
from kpybroker.storage.dirs.directory import InUse
from kpybroker.world.event_loops import new_event_loop
from kpybroker.world.real import real_world

if TYPE_CHECKING:
    from kpybroker.cli.secure_dev import SecureFiles
    from kpybroker.server.node import Node

DEV_DATA_DIR = Path("kpybroker-data")


def dev(
    wanted: LocalClusterOptions, data_dir: Path | None, *, ephemeral: bool, is_secure: bool, lifetime: Lifetime
) -> None:
    """Run one node on 127.0.0.1 with defaults for a laptop, or several nodes, each in its own process. Raises
    ConfigError."""
    if is_secure and wanted.brokers != 1:
        raise ConfigError("--secure is for one broker; omit --brokers, or set TLS and logins with --set")
    if ephemeral and "log.dirs" in wanted.settings:
        raise ConfigError("--ephemeral and --set log.dirs cannot be used together; give one of them")
    directory = _temporary_directory() if ephemeral else (data_dir or DEV_DATA_DIR)
    try:
        if wanted.brokers == AUTO:
            wanted = for_cores(wanted, directory.absolute())
        if wanted.brokers == 1:
            _dev_one(wanted, directory.absolute(), lifetime, is_secure=is_secure)
        else:
            dev_several(wanted, directory.absolute(), lifetime)
    finally:
        if ephemeral:
            import shutil

            shutil.rmtree(directory, ignore_errors=True)
            if is_secure:
                from kpybroker.cli.secure_dev import directory_of

                shutil.rmtree(directory_of(directory), ignore_errors=True)


def _temporary_directory() -> Path:
    import tempfile  # other starts do not need it

    return Path(tempfile.mkdtemp(prefix="kpybroker-"))


def _dev_one(wanted: LocalClusterOptions, directory: Path, lifetime: Lifetime, *, is_secure: bool) -> None:
    config, files = configure_one(wanted, directory, is_secure=is_secure)
    if files is not None:
        lifetime = lifetime._replace(client=files.client, explained=files.explained())
    try:
        _run(config, lifetime)
    except InUse as error:
        raise ConfigError(IN_USE.format(directory)) from error


def configure_one(
    wanted: LocalClusterOptions, directory: Path, *, is_secure: bool
) -> tuple[BrokerConfig, SecureFiles | None]:
    """The settings of a single node of `dev`, and the files of its login if it is secure. Raises ConfigError."""
    check_alone(directory)
    files = None
    if is_secure:
        from kpybroker.cli import secure_dev  # its imports would delay every other start

        files = secure_dev.prepare(directory, wanted.port)
    properties = {
        **DEV_DEFAULTS,
        "offsets.topic.replication.factor": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{wanted.port}",
        "log.dirs": str(directory),
        **_http(wanted.http_port),
        **({} if files is None else files.settings()),
        **wanted.settings,
    }
    config = parse_config(properties, "--set")
    if files is not None:
        secure_dev.format_with_user(properties, directory, files)
    return config, files


def serve(
    config: Path | None,
    environment: Mapping[str, str] | None,
    settings: list[str],
    *,
    http_port: int | None,
    brokers: int,
    lifetime: Lifetime,
) -> None:
    """Run one node, or this number of brokers for one machine. Environment variables take precedence over the
    properties file, and --set over both. Raises ConfigError."""
    properties: dict[str, str] = {}
    if environment is not None:
        prepare(lifetime)  # first, because reading the environment may log
        properties = read_environment(environment, config)
    elif config is not None:
        prepare(lifetime)
        properties = read_properties(config)
    properties.update({**_http(http_port), **parse_settings(settings)})
    source = _source(config, environment)
    first = parse_config(properties, source)
    nodes = derive_nodes(real_world(), first, properties, brokers, source)
    if len(nodes) > 1:
        prepare(lifetime)
        pages = first if first.http_port is not None else None
        run(Several(nodes, ",".join(first.log_dirs), pages), lifetime)
    else:
        _run(first, lifetime)


def serve_one_of_several(properties: Mapping[str, str], lifetime: Lifetime) -> None:
    """Run a node with the settings of the parent process, which has checked them. Raises ConfigError."""
    _run(parse_config(properties), lifetime, is_child=True)


def _source(config: Path | None, environment: Mapping[str, str] | None) -> str:
    if environment is not None:
        return "the environment"
    return str(config) if config is not None else "--set"


def parse_settings(settings: list[str]) -> dict[str, str]:
    """Parse the values of --set. Raises ConfigError."""
    return dict(parse_setting(text) for text in settings)


def _http(port: int | None) -> dict[str, str]:
    return {} if port is None else {"kpybroker.http.port": str(port)}


def _run(config: BrokerConfig, lifetime: Lifetime, *, is_child: bool = False) -> None:
    """Run a node until it stops. Exits with 1 if it failed. `is_child`: the parent process has logged the build."""
    prepare(lifetime)
    if not is_child:
        log_build()
    config = set_descriptor_limits(config)
    _log_events(config)
    from kpybroker.server.node import Node  # the process that starts several nodes does not need it

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        start = partial(Node.start, lifetime.world or real_world(), config, records_requests=lifetime.world is not None)
        failure = runner.run(_serve(start, config, lifetime))
    early.ignore_signals()
    from kpybroker.raft.log.metadata_log import LACKS_METADATA

    end_with(failure, CONTRADICTED if failure and failure.startswith(LACKS_METADATA) else 1)


def _log_events(config: BrokerConfig) -> None:
    """Unless a log level is set, log cluster events in a cluster of several nodes, and denied requests if there is an
    authorizer. JSON lines of the audit log have no prefix."""
    if config.audit_format == JSON:
        bare = logging.StreamHandler(sys.stderr)
        bare.setFormatter(logging.Formatter("%(message)s"))
        audit = logging.getLogger(AUDIT)
        audit.addHandler(bare)
        audit.propagate = False
    if "KPYBROKER_LOG" in os.environ:
        return
    if len(config.controller_quorum_voters) > 1 or config.controller_quorum_bootstrap_servers:
        logging.getLogger(CHRONICLE).setLevel(logging.INFO)
    if config.authorizer_class_name:
        logging.getLogger(AUDIT).setLevel(logging.INFO)


async def _serve(
    start: Callable[[], Coroutine[Any, Any, Node]], config: BrokerConfig, lifetime: Lifetime
) -> str | None:
    """Serve clients until a stop is requested (returns None) or the node fails (returns the reason). Raises
    ConfigError."""
    stop = Stop()
    stop.listen(lifetime)
    stopped = asyncio.ensure_future(stop.wished.wait())
    starting = asyncio.ensure_future(start())
    await asyncio.wait([stopped, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        if starting.cancelled():
            return None
    node = starting.result()
    try:
        if not stopped.done():
            facts = Facts(node.bootstrap, ",".join(config.log_dirs), node.http, lifetime.client)
            report_ready(facts, lifetime.ready_file)
            if lifetime.explained:
                say(lifetime.explained)
            process_memory.freeze_startup_objects()
            node.broker.long_work.on_busy(process_memory.put_off_full_collections)
            process_memory.keep_freed_memory()
            leaving = asyncio.ensure_future(_hand_over(node, stop.hand_over))
            commands = asyncio.ensure_future(_take_commands(node, stop.lines)) if lifetime.takes_commands else None
            waits: list[asyncio.Future[Any]] = [stopped, node.failed]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if commands is not None:
                commands.cancel()
    finally:
        stopped.cancel()
        await node.stop()
        remove_ready_file(lifetime.ready_file)
    return node.failed.result() if node.failed.done() else None


async def _take_commands(node: Node, lines: asyncio.Queue[bytes]) -> None:
    from kpybroker.cli import control  # only tests need it

    while True:
        say(await control.execute(node.server, await lines.get()))


async def _hand_over(node: Node, wished: asyncio.Event) -> None:
    await wished.wait()
    await node.broker.leave(also_last=True)
    say("kpybroker has handed over")
