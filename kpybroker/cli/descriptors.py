"""Computes the limits of open segments and connections from the process's limit (`ulimit -n`) before the start.

The budget of file descriptors is divided into segments of all log.dirs, connections, and a reserve for the rest.
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
"""Reserve for listeners, connections of other brokers, the metadata log, indexes, checkpoints, and Python's
libraries."""
CONTROLLERS = 48
"""Reserve for connections of nodes to a controller listener, to which max.connections does not apply."""
HTTP_CONNECTIONS = 64
"""Reserve for connections to kpybroker.http.port; with TLS, the same number again for handshakes."""
DIRECTORY = 2
"""Reserve for each additional log directory: its lock and its syncs."""
FILES, FILES_MIN = "kpybroker.max.open.files", 16
CONNECTIONS = "max.connections"
NO_LIMIT = 2147483647
OPEN_MAX = 10_240
"""The most that macOS allows a process, although it reports an unlimited hard limit."""
SELECT_MAX = 512
"""The most sockets that `select` can wait for on Windows. Files do not count there."""
FEW = 1000
"""A connection limit below this is logged as a warning."""


class DescriptorLimits(NamedTuple):
    """The limits of open segments and of connections."""

    files: int
    connections: int


def set_descriptor_limits(config: BrokerConfig) -> BrokerConfig:
    """Raise the process's limit as far as allowed, and set the limits that the settings leave open.

    Raises ConfigError if the settings need more descriptors than are available.
    """
    if sys.platform == "win32":
        return parse_config({**config.static, CONNECTIONS: str(connections_of_select(config))})
    allowed = _take_all()
    if allowed is None:
        return config
    found = shares(allowed, config)
    if CONNECTIONS not in config.static and found.connections < FEW:
        text = "%d file descriptors leave room for %d connections; raise `ulimit -n` for more"
        log.warning(text, allowed, found.connections)
    return parse_config({**config.static, FILES: str(found.files), CONNECTIONS: str(found.connections)})


def reserved_descriptors(config: BrokerConfig) -> int:
    """The number of descriptors reserved for purposes other than segments and connections of clients."""
    http = HTTP_CONNECTIONS if config.http_port is not None else 0
    handshakes = HTTP_CONNECTIONS if http and config.http_tls_listener is not None else 0
    controllers = CONTROLLERS if config.controller_listeners else 0
    return KEPT_BACK + controllers + http + handshakes + DIRECTORY * (len(config.log_dirs) - 1)


def shares(descriptors: int, config: BrokerConfig) -> DescriptorLimits:
    """The limits from the settings. Without settings, segments receive at most their default, and connections at least
    a quarter of the descriptors.

    Raises ConfigError if there are not enough descriptors.
    """
    left = descriptors - reserved_descriptors(config)
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
            f"{FILES}={max(files, FILES_MIN)}: {reserved_descriptors(config)} are kept for the rest, and "
            f"{max(left, 0)} remain for both; raise `ulimit -n`, or lower these"
        )
    return DescriptorLimits(files, connections)


def connections_of_select(config: BrokerConfig) -> int:
    """The limit of connections on Windows. Raises ConfigError if the settings need more."""
    left = SELECT_MAX - reserved_descriptors(config)
    if config.max_connections == NO_LIMIT:
        return left
    if config.max_connections > left:
        raise ConfigError(
            f"{CONNECTIONS}={config.max_connections}: on Windows, at most {left} connections are possible with these "
            "settings; lower it"
        )
    return config.max_connections


def _take_all() -> int | None:
    """Raise the soft limit to the hard one, as a JVM does, and return it; None if there is no limit."""
    if sys.platform == "win32":
        return None  # the limit is that of `select`
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
