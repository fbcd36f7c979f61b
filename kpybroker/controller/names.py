"""Checks topic names."""

from __future__ import annotations

import re

from kpybroker.errors import ErrorCode, KafkaError

NAME_LENGTH_MAX = 249
LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def invalid_topic_name(name: str) -> str | None:
    """The reason why a topic name is invalid; None if it is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    if not LEGAL.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters "
            "other than ASCII alphanumerics, '.', '_' and '-'"
        )
    return None


def check_topic_name(name: str) -> None:
    """Check a topic name. Raises INVALID_TOPIC_EXCEPTION."""
    why = invalid_topic_name(name)
    if why is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
