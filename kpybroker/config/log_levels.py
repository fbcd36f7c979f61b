"""Reads and sets the levels of this process's loggers, for BROKER_LOGGER resources (KIP-412)."""

from __future__ import annotations

import logging

from kpybroker.errors import ErrorCode, KafkaError

ROOT = "root"
TRACE = 5
LEVELS = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": TRACE,
    "WARN": logging.WARNING,
}


def log_levels() -> dict[str, str]:
    """The effective level of every logger of this broker, by name, and of `root`."""
    names = sorted(name for name in logging.root.manager.loggerDict if name.split(".")[0] == "kpybroker")
    return {ROOT: _level_name(logging.root), **{name: _level_name(logging.getLogger(name)) for name in names}}


def check_log_level(name: str, level: str | None) -> None:
    """Raise INVALID_CONFIG for an unknown logger or level. None means that the level is inherited from the parent."""
    if name not in log_levels():
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if level is None and name == ROOT:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not allowed")
    if level is not None and level not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
            f"Valid log levels are {', '.join(LEVELS)}",
        )


def set_log_level(name: str, level: str | None) -> None:
    """Set a level that `check_log_level` has accepted; None removes it."""
    logger = logging.root if name == ROOT else logging.getLogger(name)
    logger.setLevel(logging.NOTSET if level is None else LEVELS[level])


def _level_name(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    return min(LEVELS, key=lambda name: (LEVELS[name] < level, abs(LEVELS[name] - level)))
