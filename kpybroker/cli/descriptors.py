"""What a broker may have open at once, reckoned from the limit of its process (`ulimit -n`) before it starts.

One budget is shared out: segments of all log.dirs together, connections, and what is kept back for all else.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import NamedTuple

from kpybroker.config import BrokerConfig, parse_config
from kpybroker.errors import ConfigError

log = logging.getLogger(__name__)

KEPT_BACK = 128
"""For listeners, other brokers that are not counted, the metadata log, indexes, checkpoints, and Python's libraries."""
CONTROLLERS = 48
"""What comes to the listener of a controller without being counted: of nodes, and of those that may be one."""
HTTP_CONNECTIONS = 64
DIRECTORY = 2
"""The lock of each further log directory, and its syncs."""
FILES, FILES_MIN = "kpybroker.max.open.files", 16
CONNECTIONS = "max.connections"
NO_LIMIT = 2147483647
OPEN_MAX = 10_240
"""What macOS allows a process at most, whose hard limit says that there is none."""
FEW = 1000
"""Fewer connections than this are worth a warning."""


class Shares(NamedTuple):
    """How many segments may be open, and how many connections there may be."""

    files: int
    connections: int


def keep_some_back(config: BrokerConfig) -> BrokerConfig:
    """Take all descriptors that the system allows, and share them out where the settings do not say how.

    Raises ConfigError where they ask for more than there are.
    """
    allowed = _take_all()
    if allowed is None:
        return config
    found = shares(allowed, config)
    if CONNECTIONS not in config.static and found.connections < FEW:
        text = "%d file descriptors leave room for %d connections; raise `ulimit -n` for more"
        log.warning(text, allowed, found.connections)
    return parse_config({**config.static, FILES: str(found.files), CONNECTIONS: str(found.connections)})


def kept_back(config: BrokerConfig) -> int:
    """What is neither a segment nor a client's connection."""
    http = HTTP_CONNECTIONS if config.http_port is not None else 0
    controllers = CONTROLLERS if config.controller_listeners else 0
    return KEPT_BACK + controllers + http + DIRECTORY * (len(config.log_dirs) - 1)


def shares(descriptors: int, config: BrokerConfig) -> Shares:
    """What is set stands. Else segments get as many as they are good for, and connections a quarter at least.

    Raises ConfigError where that is more than there are.
    """
    left = descriptors - kept_back(config)
    connections = config.max_connections if CONNECTIONS in config.static else NO_LIMIT
    if connections == NO_LIMIT:
        connections = left - config.max_open_files
        if FILES not in config.static:
            connections = max(connections, descriptors // 4)
    files = config.max_open_files
    if FILES not in config.static:
        files = min(files, left - connections)
    if files < FILES_MIN or connections < 0 or files + connections > left:
        raise ConfigError(
            f"{descriptors} file descriptors are too few for {CONNECTIONS}={max(connections, 0)} and "
            f"{FILES}={max(files, FILES_MIN)}: {kept_back(config)} are kept for the rest, and {max(left, 0)} remain "
            "for both; raise `ulimit -n`, or lower these"
        )
    return Shares(files, connections)


def _take_all() -> int | None:
    """Raise the soft limit to the hard one, as a JVM does; None where there is no limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    for wanted in (hard, OPEN_MAX):
        if soft == unlimited or (wanted != unlimited and wanted <= soft):
            break
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return None if soft == unlimited else soft
