"""How many connections leave a broker the file descriptors that its logs need."""

from __future__ import annotations

import contextlib
import logging
import sys

from kpybroker.config import BrokerConfig

log = logging.getLogger(__name__)

KEPT_BACK = 128
"""For listeners, other brokers, checkpoints and the libraries of Python, beside kpybroker.max.open.files."""
FEW = 1000
"""Fewer connections than this are worth a warning."""


def keep_some_back(config: BrokerConfig) -> BrokerConfig:
    """Take all descriptors that the system allows; without max.connections, it becomes what is left of them."""
    allowed = _take_all()
    if allowed is None or "max.connections" in config.static:
        return config
    left = connections_within(allowed, config.max_open_files)
    if left < FEW:
        log.warning("%d file descriptors leave room for %d connections; raise `ulimit -n` for more", allowed, left)
    return BrokerConfig.parse({**config.static, "max.connections": str(left)})


def connections_within(descriptors: int, max_open_files: int) -> int:
    """What logs may keep open stays free; where there is hardly more than that, a quarter is for connections."""
    return max(descriptors - max_open_files - KEPT_BACK, descriptors // 4)


def _take_all() -> int | None:
    """Raise the soft limit to the hard one, as a JVM does; None where there is no limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a lower one of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return None if soft == resource.RLIM_INFINITY else soft
