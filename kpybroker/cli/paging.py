"""What commands that page through stored records share: names of records, filters and limits, and a progress bar."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kpybroker.errors import ConfigError

T = TypeVar("T")
Tell = Callable[[int, int], None]
"""Is told how much is done, and how much there is in all."""


def parse_place(name: str) -> tuple[int, int]:
    """The partition and the offset in PARTITION:OFFSET. Raises ConfigError."""
    partition, colon, offset = name.partition(":")
    digits = partition + offset
    if not (colon and partition and offset and digits.isascii() and digits.isdecimal() and len(digits) < 30):
        raise ConfigError(f"cannot read the record {name!r}: write PARTITION:OFFSET, such as 0:1234")
    return int(partition), int(offset)


async def first_of(pages: AsyncGenerator[list[T], None], matches: Callable[[T], bool], most: int) -> list[T]:
    """The first elements that match; `most`, and a few more if there are more. Closes `pages`."""
    found: list[T] = []
    async with aclosing(pages):
        async for page in pages:
            found += filter(matches, page)
            if len(found) > most:
                break
    return found


@contextmanager
def progress(what: str) -> Iterator[Tell]:
    """A progress bar on stderr, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    console = Console(stderr=True)
    hidden = not sys.stderr.isatty()
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
