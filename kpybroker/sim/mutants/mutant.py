"""Defines a mutant: patches that add a bug to the product, and the faults that reveal the bug."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch


class Patch(NamedTuple):
    """Replaces `target.name` with `instead`."""

    target: Any
    name: str
    instead: Any


class Mutant(NamedTuple):
    """A deliberate bug. Its seeds draw faults only from `faults`, or from all faults if it is empty."""

    description: str
    patches: tuple[Patch, ...]
    faults: tuple[str, ...] = ()
    brokers: int = 1
    transacts: bool = False
    compacts: bool = False
    moves: bool = False
    actors: tuple[str, ...] = ()
    """The only actors that take part, besides the clients of every run."""

    @contextmanager
    def alive(self) -> Iterator[None]:
        with ExitStack() as stack:
            for one in self.patches:
                stack.enter_context(patch.object(one.target, one.name, one.instead))
            yield


def force(target: Any, **values: Any) -> None:
    """Assign attributes of another object, which correct code must not do."""
    for name, value in values.items():
        setattr(target, name, value)
