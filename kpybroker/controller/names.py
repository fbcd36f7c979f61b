"""Which topic names are legal."""

from __future__ import annotations

import re

NAME_LENGTH_MAX = 249
LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def invalid_topic_name(name: str) -> str | None:
    """Why this is no topic name, or None when it is one."""
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
