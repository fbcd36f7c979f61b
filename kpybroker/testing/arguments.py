"""Checks the arguments of the test kit's calls."""

from __future__ import annotations

from collections.abc import Mapping


def whole_number(name: str, value: object) -> None:
    """Raises TypeError unless it is an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}: give a whole number, not {type(value).__name__}")


def text(name: str, value: object) -> None:
    """Raises TypeError unless it is text."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: give text, not {type(value).__name__}")


def mapping(name: str, value: object, example: str) -> None:
    """Raises TypeError unless it is a mapping."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is a mapping, such as {example}, not {type(value).__name__}")
