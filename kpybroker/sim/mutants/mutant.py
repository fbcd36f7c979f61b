"""A way to be wrong: patches to the product, and the faults that show them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch


class Patch(NamedTuple):
    """`target.name` is replaced by `instead`."""

    target: Any
    name: str
    instead: Any


class Mutant(NamedTuple):
    """A broken product. Only `faults` are let loose; all, where none is named."""

    says: str
    patches: tuple[Patch, ...]
    faults: tuple[str, ...] = ()
    brokers: int = 1
    transacts: bool = False
    compacts: bool = False
    moves: bool = False
    actors: tuple[str, ...] = ()
    """Those that take part beside the clients that every run has; no others."""

    @contextmanager
    def alive(self) -> Iterator[None]:
        with ExitStack() as stack:
            for one in self.patches:
                stack.enter_context(patch.object(one.target, one.name, one.instead))
            yield
