"""Runs `kpybroker dev` and `serve`: reads the settings, starts the nodes, prints the ready line, stops cleanly."""

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
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kpybroker.cli import children, early, process_memory
from kpybroker.cli.children import HAND_OVER
from kpybroker.cli.descriptors import set_descriptor_limits
from kpybroker.cli.environment import read_environment
from kpybroker.cli.local_cluster import (
    BROKERS_MAX,
    DEV_DEFAULTS,
    LocalClusterOptions,
    LocalNode,
    Ports,
    check_alone,
    plan,
)
from kpybroker.config import BrokerConfig, parse_config, parse_setting
from kpybroker.config.own_keys import JSON
from kpybroker.config.property_files import read_properties
from kpybroker.errors import ConfigError
from kpybroker.metadata.chronicle import CHRONICLE
from kpybroker.security.audit import AUDIT
from kpybroker.storage.dirs.directory import LOCK, InUse
from kpybroker.world.event_loops import new_event_loop
from kpybroker.world.processes import is_running, when_asked_to_stop
from kpybroker.world.real import real_world

if TYPE_CHECKING:
    from kpybroker.cli.secure_dev import SecureFiles
    from kpybroker.server.node import Node
    from kpybroker.world import World

DEV_DATA_DIR = Path("kpybroker-data")
IN_USE = (
    "{} is in use by another kpybroker; stop it, or start this one with --port 0 and --data-dir DIRECTORY or "
    "--ephemeral"
)
COMMANDS_MAX = 100
"""The most commands of tests that wait on standard input before its reader waits, too."""
COMMAND_BYTES_MAX = 65536
"""The longest command. A longer line stops the node, as the end of standard input does."""
ONE_WISH_S = 0.5
"""A second SIGINT within this time counts as the same Ctrl-C, forwarded by another process."""


class Lifetime(NamedTuple):
    """The ready file, and events other than signals that stop the node."""

    ready_file: Path | None = None
    until_stdin_closes: bool = False
    takes_commands: bool = False
    """Whether standard input has HAND_OVER and commands of tests (`control.py`), which are answered on standard
    output."""
    world: World | None = None
    """The World of a broker of the test kit, which also keeps the last requests; None: that of this machine."""
    client: Path | None = None
    """The file with the settings that a client needs, if there is one."""
    explained: str = ""
    """Lines to print after the ready line."""


class Facts(NamedTuple):
    """The contents of the ready line and the ready file."""

    bootstrap: str
    data: str
    http: str | None = None
    """host:port of /metrics, /healthz and /readyz, for each broker."""
    client: Path | None = None


def dev(
    wanted: LocalClusterOptions, data_dir: Path | None, *, ephemeral: bool, is_secure: bool, lifetime: Lifetime
) -> None:
    """Run one node on 127.0.0.1 with defaults for a laptop, or several nodes, each in its own process. Raises
    ConfigError."""
    if is_secure and wanted.brokers > 1:
        raise ConfigError("--secure is for one broker; omit --brokers, or set TLS and logins with --set")
    if ephemeral and "log.dirs" in wanted.settings:
        raise ConfigError("--ephemeral and --set log.dirs cannot be used together; give one of them")
    directory = Path(tempfile.mkdtemp(prefix="kpybroker-")) if ephemeral else (data_dir or DEV_DATA_DIR)
    try:
        if wanted.brokers == 1:
            _dev_one(wanted, directory.absolute(), lifetime, is_secure=is_secure)
        else:
            _dev_several(wanted, directory.absolute(), lifetime)
    finally:
        if ephemeral:
            shutil.rmtree(directory, ignore_errors=True)
            if is_secure:
                from kpybroker.cli.secure_dev import directory_of

                shutil.rmtree(directory_of(directory), ignore_errors=True)


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


def _dev_several(wanted: LocalClusterOptions, directory: Path, lifetime: Lifetime) -> None:
    if not 1 <= wanted.brokers <= BROKERS_MAX:
        raise ConfigError(f"--brokers {wanted.brokers}: give a number from 1 to {BROKERS_MAX}")
    _prepare(lifetime)
    world = real_world()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = world.disk.lock(str(directory / LOCK))
    except BlockingIOError as error:
        raise ConfigError(IN_USE.format(directory)) from error
    except OSError as error:
        raise ConfigError(f"cannot use {directory}: {error.strerror}; choose another --data-dir") from error
    with contextlib.closing(Ports()) as ports, contextlib.ExitStack() as at_end:
        at_end.callback(world.disk.close, lock)  # Windows removes no file that is open
        nodes = plan(directory, wanted, DEV_DEFAULTS, ports)
        try:
            for node in nodes:
                assert node.config, "invalid settings were refused before"
            for node in nodes:
                node.write()
        except OSError as error:
            raise ConfigError(f"cannot write {directory}: {error.strerror}; choose another --data-dir") from error
        ports.let_nodes_listen()
        failure = asyncio.run(_oversee(nodes, directory, lifetime))
    early.ignore_signals()
    _end_with(failure)


async def _oversee(nodes: list[LocalNode], directory: Path, lifetime: Lifetime) -> str | None:
    """Start the nodes, print the ready line when all serve clients, watch them, and stop them so that each can hand
    over its leaderships. Returns the reason if all have ended. Raises ConfigError."""
    stop = _Stop()
    stop.listen(lifetime)
    wish = asyncio.ensure_future(stop.wished.wait())
    brokers: list[children.Child] = []
    try:
        for node in nodes:
            brokers.append(await children.start(node))
        if not await children.all_ready(brokers, wish):
            return None
        configs = [child.node.config for child in brokers]
        http = [f"{config.http_host}:{config.http_port}" for config in configs if config.http_port is not None]
        bootstrap = ",".join(f"{config.listeners[0].host}:{config.listeners[0].port}" for config in configs)
        _report_ready(Facts(bootstrap, str(directory), ",".join(http) or None), lifetime.ready_file)
        return await children.watch(brokers, wish)
    finally:
        wish.cancel()
        await children.stop_all(brokers)
        _remove_ready_file(lifetime.ready_file)


def serve(
    config: Path | None,
    environment: Mapping[str, str] | None,
    settings: list[str],
    *,
    http_port: int | None,
    lifetime: Lifetime,
) -> None:
    """Run one node. Environment variables take precedence over the properties file, and --set over both. Raises
    ConfigError."""
    properties: dict[str, str] = {}
    if environment is not None:
        _prepare(lifetime)  # first, because reading the environment may log
        properties = read_environment(environment, config)
    elif config is not None:
        _prepare(lifetime)
        properties = read_properties(config)
    properties.update({**_http(http_port), **parse_settings(settings)})
    _run(parse_config(properties, _source(config, environment)), lifetime)


def _source(config: Path | None, environment: Mapping[str, str] | None) -> str:
    if environment is not None:
        return "the environment"
    return str(config) if config is not None else "--set"


def parse_settings(settings: list[str]) -> dict[str, str]:
    """Parse the values of --set. Raises ConfigError."""
    return dict(parse_setting(text) for text in settings)


def _http(port: int | None) -> dict[str, str]:
    return {} if port is None else {"kpybroker.http.port": str(port)}


def _run(config: BrokerConfig, lifetime: Lifetime) -> None:
    """Run a node until it stops. Exits with 1 if it failed."""
    _prepare(lifetime)
    config = set_descriptor_limits(config)
    _log_events(config)
    from kpybroker.server.node import Node  # the process that starts several nodes does not need it

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        start = partial(Node.start, lifetime.world or real_world(), config, records_requests=lifetime.world is not None)
        failure = runner.run(_serve(start, config, lifetime))
    early.ignore_signals()
    _end_with(failure)


def _prepare(lifetime: Lifetime) -> None:
    logging.basicConfig(
        level=_log_level(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if lifetime.ready_file is not None:
        _check_ready_file(lifetime.ready_file)


def _end_with(failure: str | None) -> None:
    if failure is not None:
        print(f"kpybroker: stopped: {failure}", file=sys.stderr)
        sys.exit(1)


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


def _log_level() -> str:
    level = os.environ.get("KPYBROKER_LOG", "WARNING").upper()
    if level not in logging.getLevelNamesMapping():
        raise ConfigError(f"KPYBROKER_LOG={level} is not a log level; write DEBUG, INFO, WARNING or ERROR")
    return level


def _check_ready_file(path: Path) -> None:
    """Check before the start that the ready file can be written. Raises ConfigError."""
    partial = _partial(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        partial.touch()
        partial.unlink()
        if _is_left_over(path):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write --ready-file {path}: {error.strerror}; name a file that can be created"
        ) from error


def _is_left_over(path: Path) -> bool:
    """Whether a killed process left the file behind. A script that waits for the file must not read the old one."""
    try:
        return not is_running(int(json.loads(path.read_text(encoding="utf-8"))["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


class _Stop:
    """Receives requests to stop, from signals or the end of stdin.

    A second Ctrl-C exits at once. A second SIGTERM does not: `timeout` and similar tools send one to the process and
    one to its group. A second SIGINT soon after the first one is also ignored, because a wrapper may forward a Ctrl-C.
    """

    def __init__(self) -> None:
        self.wished = asyncio.Event()
        self.hand_over = asyncio.Event()
        """Set when the parent process requests that leaderships are handed over."""
        self.lines: asyncio.Queue[bytes] = asyncio.Queue(COMMANDS_MAX)
        """The lines that the parent process writes to standard input, if it sends commands."""
        self._loop = asyncio.get_running_loop()
        self._wished_at: float | None = None

    def listen(self, lifetime: Lifetime) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            # not add_signal_handler, because its handlers wait while the loop is busy, even for the second signal
            signal.signal(number, self._on_signal)
        if early.ends_at_hangup():
            signal.signal(early.HANGUP, self._on_hangup)
        if early.was_asked_to_stop():
            self.wished.set()
        when_asked_to_stop(self._wish)
        if lifetime.takes_commands:
            threading.Thread(target=self._read_commands, daemon=True).start()
        elif lifetime.until_stdin_closes:
            threading.Thread(target=self._read_stdin, daemon=True).start()

    def _on_signal(self, number: int, frame: object) -> None:
        now = self._loop.time()
        if self._wished_at is None:
            self._wished_at = now
            self._wish()
        elif number == signal.SIGINT and now - self._wished_at >= ONE_WISH_S:
            os._exit(1)

    def _on_hangup(self, number: int, frame: object) -> None:
        self._wish()  # SIGHUP never forces the exit: kernel and shell both send it when a terminal closes

    def _wish(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has already ended
            self._loop.call_soon_threadsafe(self.wished.set)

    def _read_commands(self) -> None:
        rest = b""
        with contextlib.suppress(OSError, RuntimeError):
            while heard := os.read(0, 4096):  # not sys.stdin, whose lock would block the end of the process
                *lines, rest = (rest + heard).split(b"\n")
                for line in lines:
                    if line + b"\n" == HAND_OVER:
                        self._loop.call_soon_threadsafe(self.hand_over.set)
                        continue
                    asyncio.run_coroutine_threadsafe(self.lines.put(line), self._loop).result()
                if len(rest) > COMMAND_BYTES_MAX:
                    break
        self._wish()

    def _read_stdin(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        self._wish()


async def _serve(
    start: Callable[[], Coroutine[Any, Any, Node]], config: BrokerConfig, lifetime: Lifetime
) -> str | None:
    """Serve clients until a stop is requested (returns None) or the node fails (returns the reason). Raises
    ConfigError."""
    stop = _Stop()
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
            _report_ready(facts, lifetime.ready_file)
            if lifetime.explained:
                _say(lifetime.explained)
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
        _remove_ready_file(lifetime.ready_file)
    return node.failed.result() if node.failed.done() else None


async def _take_commands(node: Node, lines: asyncio.Queue[bytes]) -> None:
    from kpybroker.cli import control  # only tests need it

    while True:
        _say(await control.execute(node.server, await lines.get()))


async def _hand_over(node: Node, wished: asyncio.Event) -> None:
    await wished.wait()
    await node.broker.leave(also_last=True)
    _say("kpybroker has handed over")


def _report_ready(facts: Facts, ready_file: Path | None) -> None:
    """Report that clients can connect: one line on stdout, and the same as JSON in the file. Raises ConfigError."""
    ready_facts = {"bootstrap": facts.bootstrap, "data": facts.data, "pid": os.getpid()}
    if facts.http is not None:
        ready_facts["http"] = facts.http
    if facts.client is not None:
        ready_facts["client"] = str(facts.client)
    if ready_file is not None:
        try:
            _partial(ready_file).write_text(json.dumps(ready_facts) + "\n", encoding="utf-8")
            _partial(ready_file).replace(ready_file)
        except OSError as error:
            raise ConfigError(f"cannot write --ready-file {ready_file}: {error.strerror}") from error
    _say(" ".join(("kpybroker ready", *(f"{name}={fact}" for name, fact in ready_facts.items()))))


def _say(line: str) -> None:
    """Print a line on stdout. If that fails, the broker keeps running."""
    try:
        print(line, flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            why = error.strerror or error
            print(f"kpybroker: cannot write to standard output: {why}; the broker keeps running", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # prevents another write at exit


def _remove_ready_file(ready_file: Path | None) -> None:
    if ready_file is not None:
        with contextlib.suppress(OSError):
            ready_file.unlink(missing_ok=True)
